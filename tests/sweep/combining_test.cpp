// The kernel that merges splits, compiled by NVRTC: a thread has all its loads of 16 splits in
// flight, with one query token or several, and teams, for more splits, spill no registers. Needs no
// GPU.
#include <gtest/gtest.h>

#include <cstdio>

#include "core/profiles.h"
#include "generator/generate.h"
#include "heuristics/space.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "tests/kernel_cache.h"
#include "tests/sweep/plans.h"
#include "tests/thirds.h"

namespace vqgen {
namespace {

TEST(Combining, KeepsItsLoadsInFlight) {
  const std::unique_ptr<Backend> backend = test::keeping_kernels(make_cuda_backend());
  for (const char* name : test::a_third({"t4", "a100", "h200"})) {
    const GpuSpec gpu = find_gpu(name);
    for (const int query_tokens : {1, 4}) {
      AttentionDecode op;
      op.shape = {.batch = 1, .query_heads = 32, .kv_heads = 8, .head_dim = 128, .tokens = 131072};
      op.shape.query_tokens = query_tokens;
      op.keys = op.values = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
      Plan plan = choose(op, gpu, {.chooser = Chooser::rules});
      ASSERT_TRUE(test::change_own(
          plan, [](auto& own) requires requires { own.splits; } { own.splits = 16; }));
      const Artifact artifact = backend->compile(generate(op, plan, gpu, Machine::cuda, {}));
      ASSERT_EQ(artifact.kernels.size(), 2u);
      const KernelResources& combine = artifact.kernels.back();
      EXPECT_GE(combine.registers, 48) << name << ' ' << query_tokens;
      EXPECT_LE(combine.registers, 64) << name << ' ' << query_tokens;
      EXPECT_EQ(combine.spill_bytes, 0) << name << ' ' << query_tokens;
      std::printf("%s, %d query tokens: %d registers\n", name, query_tokens, combine.registers);
    }
  }
}

// A bound of 64 registers would make teams spill.
TEST(Combining, TeamsSpillNothing) {
  const std::unique_ptr<Backend> backend = test::keeping_kernels(make_cuda_backend());
  const GpuSpec gpu = find_gpu("h200");
  for (const auto& [head_dim, splits] :
       test::a_third({std::pair{128, 17}, {128, 33}, {64, 65}, {96, 24}})) {
    AttentionDecode op;
    op.shape = {
        .batch = 1, .query_heads = 4, .kv_heads = 1, .head_dim = head_dim, .tokens = 131072};
    op.keys = op.values = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
    AttentionMma plan;
    plan.threads = 256;
    plan.heads_per_block = 4;
    plan.splits = splits;
    const Verdict verdict = check(plan, op, gpu);
    ASSERT_TRUE(verdict.ok) << verdict.reason;
    const Artifact artifact = backend->compile(generate(op, plan, gpu, Machine::cuda, {}));
    ASSERT_EQ(artifact.kernels.size(), 2u);
    EXPECT_EQ(artifact.kernels.back().spill_bytes, 0) << head_dim << ' ' << splits;
  }
}

}  // namespace
}  // namespace vqgen
