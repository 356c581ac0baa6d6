// occupancy() against the driver's own count, for kernels of few to 255 registers, over blocks of
// all sizes and shared memory up to a block's limit.
#include "heuristics/occupancy.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "runtime/backend/cuda/cuda_backend.h"
#include "tests/cuda/amalgamate.h"

namespace vqgen {
namespace {

struct HoldArgs {
  const float* in;
  float* out;
};

// Holds `values` floats per thread at once: each is used after all have been loaded.
std::string holding_kernel(int threads, int values) {
  return fmt::format(R"(
struct HoldArgs {{ const float* in; float* out; }};
VQ_KERNEL(vq_hold, {0}, HoldArgs) {{
  using namespace vq;
  float held[{1}];
  VQ_UNROLL
  for (int i = 0; i < {1}; ++i) held[i] = load_global(args.in + i * {0} + thread_index());
  sync_block();
  float sum = 0.0f;
  VQ_UNROLL
  for (int i = 0; i < {1}; ++i) sum = sum * held[i] + held[{1} - 1 - i];
  VQ_UNROLL
  for (int i = 0; i < {1}; ++i) store_global(args.out + i * {0} + thread_index(), held[i] * sum);
}}
)",
                     threads, values);
}

class CudaOccupancy : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto spec = backend_->device();
    if (!spec) GTEST_SKIP() << "no CUDA device";
    spec_ = *spec;
  }

  // Compares all block sizes up to `most_threads`; returns the registers of the kernel.
  int compare(int most_threads, int values) {
    KernelSource source = test::one_kernel(holding_kernel(most_threads, values), "vq_hold",
                                           spec_.arch, static_cast<unsigned>(most_threads),
                                           spec_.shared_bytes_per_block, sizeof(HoldArgs));
    const Artifact artifact = backend_->compile(source);
    const auto kernel = backend_->load(artifact, source);
    const KernelResources& resources = artifact.kernels.at(0);
    for (int threads = 16; threads <= most_threads; threads += 16) {
      for (std::int64_t bytes = 0; bytes <= spec_.shared_bytes_per_block; bytes += 997) {
        source.entries[0].threads = static_cast<unsigned>(threads);
        source.entries[0].shared_bytes = bytes;
        const std::optional<int> expected = backend_->resident_blocks(*kernel, source, 0);
        EXPECT_TRUE(expected.has_value());
        const Occupancy found =
            occupancy(spec_, threads, resources.registers, bytes + resources.static_shared_bytes);
        if (found.blocks != expected.value_or(-1)) {
          ADD_FAILURE() << threads << " threads, " << resources.registers << " registers, " << bytes
                        << " bytes: " << found.blocks << " blocks, the driver says "
                        << expected.value_or(-1);
          return resources.registers;
        }
      }
    }
    return resources.registers;
  }

  std::unique_ptr<Backend> backend_ = make_cuda_backend();
  GpuSpec spec_;
};

TEST_F(CudaOccupancy, IsWhatTheDriverSays) {
  std::string seen;
  int most = 0;
  for (const auto& [threads, values] : std::vector<std::pair<int, int>>{{1024, 1},
                                                                        {1024, 20},
                                                                        {512, 30},
                                                                        {512, 64},
                                                                        {384, 40},
                                                                        {384, 140},
                                                                        {256, 70},
                                                                        {256, 180},
                                                                        {256, 230},
                                                                        {128, 50}}) {
    const int registers = compare(threads, values);
    most = std::max(most, registers);
    seen += fmt::format(" {}x{}", threads, registers);
  }
  EXPECT_GE(most, 200) << "no kernel of many registers was compared:" << seen;
  std::printf("threads x registers compared:%s\n", seen.c_str());
}

}  // namespace
}  // namespace vqgen
