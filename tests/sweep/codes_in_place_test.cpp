// Codes of attention by fragments in one set of registers (code_stages 1) against two: sums have
// the same order, so results have the same bits.
#include <gtest/gtest.h>

#include "runtime/verify/reference_attention.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

struct Variant {
  const char* name;
  int query_tokens;
  int group;
  int page_tokens;
  int threads;
  int step_tokens;
  DType dtype;
};

AttentionDecode problem(const Variant& variant) {
  AttentionDecode op;
  op.dtype = variant.dtype;
  op.shape = {.batch = 2,
              .query_heads = 2 * variant.group,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 1100,
              .window = 20,
              .sinks = 2,
              .page_tokens = variant.page_tokens,
              .query_tokens = variant.query_tokens};
  op.keys = {.vector_size = 4, .index_bits = 8, .residuals = 2, .scope = Scope::head};
  op.keys.smooth = op.keys.hadamard = op.keys.stage_scales = true;
  op.values = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
  return op;
}

TEST(CodesInPlace, ChangeNoBit) {
  if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  const Variant variants[] = {
      {"one query token", 1, 4, 0, 96, 16, DType::f16},
      {"one query token in pages", 1, 5, 16, 64, 32, DType::bf16},
      {"16 heads of 4 query tokens", 4, 4, 0, 384, 32, DType::f16},
      {"8 heads of 2 query tokens in pages", 2, 4, 64, 128, 16, DType::f16},
  };
  for (const Variant& variant : variants) {
    SCOPED_TRACE(variant.name);
    const AttentionDecode op = problem(variant);
    auto plan = rules_plan<AttentionFragments>(op, sweep_gpu());
    plan.heads_per_block = variant.query_tokens * variant.group;
    plan.step_tokens = variant.step_tokens;
    plan.splits = 2;
    plan.threads = variant.threads;
    plan.code_stages = 1;
    const AttentionData data =
        make_attention_data(op, {.seed = 71, .lengths = LengthPattern::ragged});
    const AttentionOutput output = Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data);
    const AttentionResult reference =
        reference_attention(data, static_cast<double>(softmax_scale(op)));
    EXPECT_TRUE(compare(reference.out, output.out, op.dtype).ok);
    EXPECT_TRUE(compare_lse(reference.lse, output.lse, op.dtype).ok);
    plan.code_stages = 0;
    // Two sets have no registers in so large blocks: other warps take other steps.
    if (!check(plan, op, sweep_gpu()).ok) continue;
    expect_same_bits(output, Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data));
  }
}

TEST(CodesInPlace, LeaveRegistersToMoreWarps) {
  const AttentionDecode op = problem({"", 4, 4, 0, 384, 32, DType::f16});
  auto plan = rules_plan<AttentionFragments>(op, sweep_gpu());
  plan.heads_per_block = 16;
  plan.threads = 384;
  plan.code_stages = 0;
  EXPECT_NE(check(plan, op, sweep_gpu()).reason.find("at most 256 threads, 384 with code_stages 1"),
            std::string::npos);
  plan.code_stages = 1;
  EXPECT_TRUE(check(plan, op, sweep_gpu()).ok) << check(plan, op, sweep_gpu()).reason;
  plan.threads = 512;
  EXPECT_FALSE(check(plan, op, sweep_gpu()).ok);
}

}  // namespace
}  // namespace vqgen::test
