// Blocks of int8_mma attention that change the basis of a cache themselves (plan field
// fused_basis), and the kernel that does so for them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/profiles.h"
#include "heuristics/check.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/verify/row_decoder.h"
#include "tests/klt_runs.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

class FusedBasis : public SweepTest<> {};

// A mean without a rotation, of keys or of values alone, or of both.
TEST_F(FusedBasis, IsThatOfKeysOrOfValues) {
  std::vector<int> all(15);
  std::iota(all.begin(), all.end(), 1);
  for (const int kinds : a_third(all)) {
    AttentionDecode op;
    op.dtype = kinds % 2 == 0 ? DType::bf16 : DType::f16;
    op.shape = {.batch = 2, .query_heads = 12, .kv_heads = 2, .head_dim = 64, .tokens = 200};
    op.shape.head_dim = kinds % 3 == 0 ? 128 : 64;
    op.shape.recent_tokens = kinds % 4 == 0 ? 0 : 20;
    op.keys = op.values = find_format("vecinfer-d4b8i8", "test");
    op.keys.smooth = op.keys.hadamard = op.values.smooth = op.values.hadamard = false;
    op.keys.center = kinds % 2 == 1;
    op.keys.klt = kinds / 2 % 2 == 1;
    op.values.center = kinds / 4 % 2 == 1;
    op.values.klt = kinds / 8 == 1;
    validate(op, "basis");
    for (const int splits : {1, 3}) {
      SweepCase each;
      AttentionInt8Mma plan{.threads = 96,
                            .splits = splits,
                            .heads_per_block = 6,
                            .pipeline_stages = 2,
                            .fused_basis = 1};
      if (splits > 1 && kinds % 3 == 1) plan.combine = Combine::last_block;
      op.shape.page_tokens = kinds % 5 == 0 ? 16 : 0;
      op.shape.batch_invariant = kinds % 5 == 1;
      each.problem = op;
      each.plan = plan;
      ASSERT_TRUE(check(each.plan, op, sweep_gpu()).ok) << check(each.plan, op, sweep_gpu()).reason;
      each.input = {.seed = 30u + static_cast<unsigned>(kinds), .lengths = LengthPattern::ragged};
      EXPECT_EQ(failure_of(each, *sweep_backend(), sweep_gpu()), "") << kinds << " " << splits;
    }
  }
}

// A large mean of keys moves the maxima of splits alike, full-precision tokens or not.
TEST_F(FusedBasis, SplitsKeepTheirWeightsBesideALargeMean) {
  AttentionDecode op;
  op.shape = {.batch = 1, .query_heads = 4, .kv_heads = 1, .head_dim = 64, .tokens = 300};
  op.shape.recent_tokens = 90;
  op.keys = op.values = find_format("vecinfer-d4b8i8", "test");
  for (VqFormat* format : {&op.keys, &op.values}) {
    format->smooth = format->hadamard = false;
    format->center = true;
  }
  validate(op, "mean");
  AttentionData data = make_attention_data(op, {.seed = 24});
  const AttentionInt8Mma plan{
      .threads = 64, .splits = 3, .heads_per_block = 4, .pipeline_stages = 2, .fused_basis = 1};
  ASSERT_TRUE(check(plan, op, sweep_gpu()).ok) << check(plan, op, sweep_gpu()).reason;
  Kernel kernel(*sweep_backend(), op, plan, sweep_gpu());
  std::fill(data.keys.mean.begin(), data.keys.mean.end(), 0.0f);
  const AttentionOutput without = kernel.run(data);
  std::fill(data.keys.mean.begin(), data.keys.mean.end(), 20000.0f);
  const AttentionOutput with = kernel.run(data);
  for (std::size_t i = 0; i < with.out.size(); ++i) {
    const double own = element_value(op.dtype, without.out[i]);
    EXPECT_NEAR(element_value(op.dtype, with.out[i]), own, 2e-3 * (std::abs(own) + 0.1)) << i;
  }
}

// The kernel that takes results out of the basis merges splits, or blocks take their own out.
TEST_F(FusedBasis, FaultsAreFoundAndThoseOfMergedSplits) {
  AttentionDecode op;
  op.shape = {.batch = 2, .query_heads = 12, .kv_heads = 2, .head_dim = 128, .tokens = 300};
  op.keys = op.values = klt_of_three_runs();
  validate(op, "basis");
  AttentionInt8Mma plan{.threads = 96, .splits = 2, .heads_per_block = 6, .pipeline_stages = 2};
  ASSERT_TRUE(check(plan, op, sweep_gpu()).ok);
  ASSERT_EQ(call_shape(plan, op).count, 3);
  const AttentionData data =
      make_attention_data(op, {.seed = 19, .lengths = LengthPattern::ragged});
  const AttentionResult reference = reference_of(op, data);
  const auto finds = [&](Kernel& faulty) {
    return is_right(reference, faulty.run(data), op.dtype);
  };
  const Fault of_splits[] = {
      {"splits.count, channel, LoadGlobal());", "1, channel, LoadGlobal());"},
      {"heads.number, heads.first + h, splits.first", "heads.number, h, splits.first"}};
  expect_faults_found(op, plan, of_splits, finds);
  plan.fused_basis = 1;
  ASSERT_TRUE(check(plan, op, sweep_gpu()).ok);
  ASSERT_EQ(call_shape(plan, op).count, 2);
  const Fault of_fusion[] = {
      {"channel_of(row) * kHeadDim + lane() + 32 * j", "channel_of(row) * kHeadDim + lane()"},
      {"query_of(head / 4, channel) + head % 4", "query_of(0, channel) + head % 4"},
      {"i64{kv_head} * kHeadDim * kHeadDim;", "0;"},
      {"if (head / 4 != quad) return;", ";"},
      {"i64{work.kv_head} * kHeadDim * kHeadDim;", "0;"},
      {"args.key_mean + i64{work.kv_head} * kHeadDim;", "args.key_mean;"},
      {"args.value_mean + i64{kv_head} * kHeadDim;", "args.value_mean;"},
      {"fused(load_constant(mean + channel), total, value)",
       "value + load_constant(mean + channel)"},
      {"highest += load_shared(shift_of(head));", ";"},
      {"if (group >= kWarps) load_factors(group);", ";"},
      {"number(factors_[i], j)", "number(factors_[i], 0)"},
      {"upper ? values[i + kHalf] : values[i];", "values[i];"},
      {"const int head = quad * 4 + lane() % 4;", "const int head = lane() % 4;"}};
  expect_faults_found(op, plan, of_fusion, finds);
}

}  // namespace
}  // namespace vqgen::test
