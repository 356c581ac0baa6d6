// A backend without a device: for what compiles, or looks kernels up, and runs none.
#pragma once

#include "runtime/backend/backend.h"

namespace vqgen {

// What drives a device does nothing here: memory is null, and a load gives no kernel.
class NoDevice : public Backend {
 public:
  std::optional<GpuSpec> device() const override { return std::nullopt; }
  std::unique_ptr<LoadedKernel> load(const Artifact&, const KernelSource&) override { return {}; }
  void* allocate(std::size_t) override { return nullptr; }
  void release(void*) noexcept override {}
  void upload(void*, std::span<const std::byte>) override {}
  void download(std::span<std::byte>, const void*) override {}
  void zero(void*, std::size_t, void*) override {}
  std::optional<int> resident_blocks(LoadedKernel&, const KernelSource&,
                                     std::size_t) const override {
    return std::nullopt;
  }
  void launch(LoadedKernel&, const KernelSource&, std::size_t,
              std::span<const std::byte>) override {}
  void synchronize() override {}
  std::vector<double> time_us(std::span<const Launch>, int, double) override { return {}; }
};

}  // namespace vqgen
