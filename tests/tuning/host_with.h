// The host backend behind a class whose calls a test can change one by one.
#pragma once

#include <memory>

#include "runtime/backend/host/host_backend.h"

namespace vqgen::test {

class HostWith : public Backend {
 public:
  std::string_view name() const override { return host_->name(); }
  Machine machine() const override { return host_->machine(); }
  std::optional<GpuSpec> device() const override { return host_->device(); }
  CompilerIdentity compiler(const KernelSource& s) const override { return host_->compiler(s); }
  Artifact compile(const KernelSource& s) const override { return host_->compile(s); }
  std::unique_ptr<LoadedKernel> load(const Artifact& a, const KernelSource& s) override {
    return host_->load(a, s);
  }
  void* allocate(std::size_t bytes) override { return host_->allocate(bytes); }
  void release(void* pointer) noexcept override { host_->release(pointer); }
  void upload(void* to, std::span<const std::byte> from) override { host_->upload(to, from); }
  void download(std::span<std::byte> to, const void* from) override { host_->download(to, from); }
  void zero(void* to, std::size_t bytes, void* stream) override { host_->zero(to, bytes, stream); }
  std::optional<int> resident_blocks(LoadedKernel& kernel, const KernelSource& source,
                                     std::size_t entry) const override {
    return host_->resident_blocks(kernel, source, entry);
  }
  void launch(LoadedKernel& kernel, const KernelSource& source, std::size_t entry,
              std::span<const std::byte> args) override {
    host_->launch(kernel, source, entry, args);
  }
  void synchronize() override { host_->synchronize(); }
  std::vector<double> time_us(std::span<const Launch> launches, int replays,
                              double warm_up_ms) override {
    return host_->time_us(launches, replays, warm_up_ms);
  }

 private:
  std::unique_ptr<Backend> host_ = make_host_backend();
};

}  // namespace vqgen::test
