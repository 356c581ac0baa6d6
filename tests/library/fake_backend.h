// A backend that only counts compilations and launches, so that the library itself is tested alone:
// in threads, under a thread sanitizer, and without a compiler.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <new>
#include <thread>

#include "core/profiles.h"
#include "runtime/backend/backend.h"
#include "runtime/library/registry.h"
#include "tests/core/support.h"

namespace vqgen::library::test {

class FakeBackend;

struct FakeKernel final : LoadedKernel {
  FakeKernel(FakeBackend& owner, std::string kernel) : backend(owner), name(std::move(kernel)) {}
  ~FakeKernel() override;
  void enqueue(std::size_t entry, std::span<const std::byte> args, void* stream) const override;
  FakeBackend& backend;
  std::string name;
};

class FakeBackend final : public NoDevice {
 public:
  std::string_view name() const override { return "fake"; }
  Machine machine() const override { return Machine::cuda; }
  CompilerIdentity compiler(const KernelSource&) const override { return {"fake 1", {}}; }
  Artifact compile(const KernelSource& source) const override {
    ++compilations;
    std::this_thread::sleep_for(compile_time);
    if (on_compile) on_compile(source);
    Artifact artifact;
    artifact.binary.resize(16);
    for (const KernelEntry& entry : source.entries) artifact.kernels.push_back({entry.name, 40});
    return artifact;
  }
  std::unique_ptr<LoadedKernel> load(const Artifact&, const KernelSource& source) override {
    ++loads;
    ++loaded;
    return std::make_unique<FakeKernel>(*this, source.entries.front().name);
  }
  void* allocate(std::size_t bytes) override {
    return ::operator new (bytes, std::align_val_t{256});
  }
  void release(void* pointer) noexcept override {
    ::operator delete (pointer, std::align_val_t{256});
  }
  bool capturing(void*) const override { return in_capture; }
  void wait_for(void*) override {
    if (on_wait) on_wait();
  }

  std::chrono::milliseconds compile_time{0};
  std::function<void(const KernelSource&)> on_compile;
  std::function<void(const FakeKernel&, std::span<const std::byte>)> on_enqueue;
  std::function<void()> on_wait;
  std::atomic<bool> in_capture{false};
  mutable std::atomic<int> compilations{0};
  std::atomic<int> loads{0};
  std::atomic<int> loaded{0};  // and not unloaded
  std::atomic<int> enqueued{0};
};

inline FakeKernel::~FakeKernel() { --backend.loaded; }
inline void FakeKernel::enqueue(std::size_t, std::span<const std::byte> args, void*) const {
  ++backend.enqueued;
  if (backend.on_enqueue) backend.on_enqueue(*this, args);
}

// A runtime over a fake backend, for the C functions.
class FakeRuntime {
 public:
  explicit FakeRuntime(RegistryOptions options = {.max_buckets = 1},
                       const std::filesystem::path& cache = {})
      : backend(std::make_shared<FakeBackend>()),
        runtime{std::make_unique<Registry>(
            backend,
            cache.empty() ? nullptr
                          : std::make_unique<ArtifactCache>(CacheOptions{.folder = cache}),
            std::move(options))} {}
  Registry& registry() { return *runtime.registry; }
  Outcome prepare(const Json& config, void* stream = nullptr) {
    return registry().prepare(config.dump(), "config", stream);
  }

  std::shared_ptr<FakeBackend> backend;
  vqgen_runtime runtime;
};

}  // namespace vqgen::library::test
