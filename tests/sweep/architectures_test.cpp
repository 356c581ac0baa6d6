// Every example config compiles by NVRTC for every architecture; for sm_75, which has no
// instructions for bf16, in both element types. Needs no GPU.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/profiles.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/prepare.h"

namespace vqgen {
namespace {

class Architectures : public testing::TestWithParam<const char*> {};

TEST_P(Architectures, EveryExampleCompiles) {
  const std::unique_ptr<Backend> backend = make_cuda_backend();
  const GpuSpec gpu = find_gpu(GetParam());
  int compiled = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(VQGEN_SOURCE_DIR "/examples/configs")) {
    if (file.path().extension() != ".json") continue;
    Config config = read_config(file.path());
    for (const DType dtype : {DType::f16, DType::bf16}) {
      if (dtype == DType::bf16 && gpu.arch != "sm_75") continue;
      std::visit([&](auto& op) { op.dtype = dtype; }, config.problem);
      const Prepared prepared = prepare(config, gpu, *backend, nullptr);
      ASSERT_EQ(prepared.artifact.kernels.size(), prepared.source.entries.size());
      EXPECT_EQ(prepared.source.arch, gpu.arch);
      for (const KernelResources& kernel : prepared.artifact.kernels) {
        EXPECT_GT(kernel.registers, 0) << file.path() << ' ' << kernel.name;
        EXPECT_LE(kernel.registers, 255) << file.path() << ' ' << kernel.name;
      }
      ++compiled;
    }
  }
  EXPECT_GE(compiled, gpu.arch == "sm_75" ? 16 : 8);
}

INSTANTIATE_TEST_SUITE_P(Gpu, Architectures, testing::Values("t4", "a100", "a10", "l40s", "h200"),
                         [](const auto& gpu) { return std::string(gpu.param); });

}  // namespace
}  // namespace vqgen
