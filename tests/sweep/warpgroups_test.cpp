// NVRTC compiles wgmma kernels for Hopper; they stay within their registers and keep products in
// flight: ptxas must not make any wait for the previous one. Needs no GPU.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/profiles.h"
#include "generator/generate.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/cuda/nvrtc_compile.h"
#include "tests/kernel_cache.h"
#include "tests/sweep/plans.h"
#include "tests/thirds.h"

namespace vqgen {
namespace {

// ptxas's output for a text. Warnings C7510 to C7519 mean that products wait for each other.
std::string log_of(const KernelSource& source) {
  NvrtcProcess process(CudaOptions{});
  const OpenedNvrtc& nvrtc = process.nvrtc();
  return process
      .compile(source.op + ".cu", source.text, nvrtc_options(nvrtc.major, nvrtc.minor, source))
      .log;
}

void expect_products_in_flight(const KernelSource& source, const std::string& what) {
  const std::string log = log_of(source);
  EXPECT_THAT(log, testing::HasSubstr(" registers")) << what;
  EXPECT_THAT(log, testing::Not(testing::HasSubstr("are serialized"))) << what;
}

Gemm product(int rows, const VqFormat& weights) {
  Gemm op;
  op.dtype = DType::f16;
  op.shape = {.rows = rows, .out_features = 1024, .in_features = 4096};
  op.weights = weights;
  return op;
}

// For all row counts, with lookups just before a product and one step ahead.
TEST(Warpgroups, CompileForHopper) {
  const std::unique_ptr<Backend> backend = test::keeping_kernels(make_cuda_backend());
  const GpuSpec gpu = find_gpu("h200");
  std::uint64_t number = 0;
  for (const int vector_size : {2, 8}) {
    for (const int rows : test::a_third({8, 16, 32, 64, 128, 256}, test::third_after(number++))) {
      Gemm op;
      op.dtype = rows == 32 ? DType::bf16 : DType::f16;
      op.shape = {.rows = rows, .out_features = 1024, .in_features = 2048};
      op.weights = {.vector_size = vector_size, .index_bits = 8, .num_codebooks = 2};
      auto plan = test::rules_plan<LinearWgmma>(op, gpu);
      ASSERT_TRUE(check(plan, op, gpu).ok) << rows;
      EXPECT_EQ(plan.rows_per_block, rows);
      for (const int ahead : {0, 1}) {
        plan.prefetch_steps = ahead;
        if (!check(plan, op, gpu).ok) continue;
        const Artifact artifact = backend->compile(generate(op, plan, gpu, Machine::cuda, {}));
        const KernelResources& kernel = artifact.kernels.front();
        EXPECT_LE(kernel.registers * plan.threads, 65536) << rows << ' ' << ahead;
        constexpr int kFewSpills =
            384;  // bytes; the most seen is 368, for two prefetched steps of 64 rows
        EXPECT_LE(kernel.spill_bytes, kFewSpills) << rows << ' ' << ahead;
      }
    }
  }
}

TEST(Rowgroups, CompileForHopper) {
  const std::unique_ptr<Backend> backend = test::keeping_kernels(make_cuda_backend());
  const GpuSpec gpu = find_gpu("h200");
  std::uint64_t number = 0;
  for (const bool bytes : {false, true}) {
    for (const int rows : test::a_third({16, 64, 128, 256}, test::third_after(number++))) {
      Gemm op;
      op.dtype = rows == 16 ? DType::bf16 : DType::f16;
      op.shape = {.rows = rows, .out_features = 1024, .in_features = 2048};
      op.weights = find_format(bytes ? "aqlm-2x8i8" : "aqlm-2x8", "test");
      const auto plan = test::rules_plan<LinearWgmmaLargeM>(op, gpu);
      ASSERT_TRUE(check(plan, op, gpu).ok) << rows;
      EXPECT_EQ(plan.byte_sums, bytes ? 1 : 0);
      EXPECT_EQ(plan.rows_per_block, std::min(rows, 128));
      const Artifact artifact = backend->compile(generate(op, plan, gpu, Machine::cuda, {}));
      const KernelResources& kernel = artifact.kernels.at(1);
      EXPECT_LE(kernel.registers * plan.threads, 65536) << rows;
      constexpr int kFewSpills = 208;  // bytes; the most seen is 176, where 512 threads add bytes
      EXPECT_LE(kernel.spill_bytes, kFewSpills) << rows;
    }
  }
}

// A block's columns in one round of its loop and in several, with the pre-pass or without.
TEST(Bytegroups, LeaveProductsInFlight) {
  const GpuSpec gpu = find_gpu("h200");
  std::vector<std::pair<std::string, KernelSource>> sources;
  for (const int rows : {8, 16, 32, 64, 128}) {
    for (const int before : {0, 1}) {
      for (const int chunk : {256, 512}) {
        const Gemm op = product(rows, find_format("aqlm-2x8i8", "test"));
        auto plan = test::rules_plan<LinearInt8Wgmma>(op, gpu);
        plan.prepack_x = before;
        plan.chunk_columns = chunk;
        plan.splits = before == 1 ? 1 : 2;
        if (!check(plan, op, gpu).ok) continue;
        sources.emplace_back(fmt::format("{} {} {}", rows, before, chunk),
                             generate(op, plan, gpu, Machine::cuda, {}));
      }
    }
  }
  EXPECT_GE(sources.size(), 12u);
  for (const auto& [what, source] : test::a_third(sources)) expect_products_in_flight(source, what);
}

template <class P>
void expect_rules_in_flight(const char* format, int rows) {
  const GpuSpec gpu = find_gpu("h200");
  const Gemm op = product(rows, find_format(format, "test"));
  const auto plan = test::rules_plan<P>(op, gpu);
  const Verdict verdict = check(plan, op, gpu);
  ASSERT_TRUE(verdict.ok) << format << ' ' << rows << ' ' << verdict.reason;
  expect_products_in_flight(generate(op, plan, gpu, Machine::cuda, {}),
                            fmt::format("{} {}", format, rows));
}

TEST(Rowgroups, LeaveProductsInFlight) {
  for (const char* format : {"aqlm-2x8i8", "aqlm-2x8"}) {
    for (const int rows : {64, 128}) expect_rules_in_flight<LinearWgmmaLargeM>(format, rows);
  }
}

TEST(Warpgroups, LeaveProductsInFlight) {
  for (const char* format : {"aqlm-2x8", "quip-4"}) {
    for (const int rows : {16, 64}) expect_rules_in_flight<LinearWgmma>(format, rows);
  }
}

TEST(AppendGemm, LeaveProductsInFlight) {
  const GpuSpec gpu = find_gpu("h200");
  KvAppend op;
  op.dtype = DType::f16;
  op.shape = {.batch = 1, .kv_heads = 8, .head_dim = 128, .tokens = 4096, .new_tokens = 4096};
  op.keys = find_format("vqkv-llama-3.1-8b-keys", "test");
  op.values = find_format("vqkv-llama-3.1-8b-values", "test");
  const auto plan = test::rules_plan<AppendGemm>(op, gpu);
  ASSERT_TRUE(check(plan, op, gpu).ok);
  ASSERT_EQ(plan.warpgroups, 1);
  expect_products_in_flight(generate(op, plan, gpu, Machine::cuda, {}), "append");
}

}  // namespace
}  // namespace vqgen
