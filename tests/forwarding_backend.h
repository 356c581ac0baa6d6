// A backend that forwards each call to another backend; a test can override calls one by one.
#pragma once

#include <memory>
#include <utility>

#include "runtime/backend/backend.h"

namespace vqgen::test {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> to) : to_(std::move(to)) {}
  std::string_view name() const override { return to_->name(); }
  Machine machine() const override { return to_->machine(); }
  std::optional<GpuSpec> device() const override { return to_->device(); }
  std::string driver() const override { return to_->driver(); }
  CompilerIdentity compiler(const KernelSource& s) const override { return to_->compiler(s); }
  CompilerIdentity opened_compiler(const KernelSource& s) const override {
    return to_->opened_compiler(s);
  }
  bool may_compile() const override { return to_->may_compile(); }
  Artifact compile(const KernelSource& s) const override { return to_->compile(s); }
  std::unique_ptr<LoadedKernel> load(const Artifact& a, const KernelSource& s) override {
    return to_->load(a, s);
  }
  void* allocate(std::size_t bytes) override { return to_->allocate(bytes); }
  void release(void* pointer) noexcept override { to_->release(pointer); }
  void upload(void* to, std::span<const std::byte> from) override { to_->upload(to, from); }
  void download(std::span<std::byte> to, const void* from) override { to_->download(to, from); }
  void lend(const void* pointer, std::size_t bytes) override { to_->lend(pointer, bytes); }
  void give_back(const void* pointer, std::size_t bytes) noexcept override {
    to_->give_back(pointer, bytes);
  }
  std::optional<int> resident_blocks(LoadedKernel& kernel, const KernelSource& source,
                                     std::size_t entry) const override {
    return to_->resident_blocks(kernel, source, entry);
  }
  void launch(LoadedKernel& kernel, const KernelSource& source, std::size_t entry,
              std::span<const std::byte> args) override {
    to_->launch(kernel, source, entry, args);
  }
  void synchronize() override { to_->synchronize(); }
  bool capturing(void* stream) const override { return to_->capturing(stream); }
  void wait_for(void* stream) override { to_->wait_for(stream); }
  void zero(void* to, std::size_t bytes, void* stream) override { to_->zero(to, bytes, stream); }
  void make_current() override { to_->make_current(); }
  std::vector<double> time_us(std::span<const Launch> launches, int replays,
                              double warm_up_ms) override {
    return to_->time_us(launches, replays, warm_up_ms);
  }

 protected:
  const Backend& to() const { return *to_; }

 private:
  std::unique_ptr<Backend> to_;
};

}  // namespace vqgen::test
