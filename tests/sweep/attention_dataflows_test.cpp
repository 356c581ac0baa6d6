// Laws between the dataflows of attention_decode, and of each of them: changes that must not change
// the result.
#include <gtest/gtest.h>

#include <cmath>

#include "core/profiles.h"
#include "runtime/ops/attention_decode/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

AttentionDecode problem() {
  AttentionDecode op;
  op.shape = {.batch = 3,
              .query_heads = 10,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 200,
              .recent_tokens = 30,
              .sinks = 3};
  op.keys = {.vector_size = 4, .index_bits = 7, .num_codebooks = 2, .scope = Scope::channel_group};
  op.keys.group_channels = 8;
  op.keys.smooth = op.keys.hadamard = op.keys.stage_scales = true;
  op.values = {.vector_size = 8, .index_bits = 9, .scope = Scope::channel_group};
  op.values.group_channels = 16;
  return op;
}

AttentionDecode of_integers() {
  AttentionDecode op = problem();
  with_integers(op.keys, true);
  with_integers(op.values, true);
  return op;
}

class Dataflows : public SweepTest<testing::TestWithParam<Plan>> {
 protected:
  static Plan plan_of(const AttentionDecode& op) { return rules_plan(GetParam(), op, sweep_gpu()); }
  static AttentionOutput run(const Plan& plan, const AttentionData& data,
                             const AttentionDecode& op = problem(), std::size_t order = 0) {
    const Verdict verdict = check(plan, op, sweep_gpu());
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    return Kernel(*sweep_backend(order), op, plan, sweep_gpu()).run(data);
  }
};

// All compute in fp32, so they differ only in the order of sums: in the last bits of a rounded
// output.
TEST_P(Dataflows, AgreesWithLanesWithinRounding) {
  const AttentionDecode op = problem();
  const AttentionData data =
      make_attention_data(op, {.seed = 21, .lengths = LengthPattern::ragged});
  const AttentionOutput lanes = run(rules_plan(AttentionSimt{}, op, sweep_gpu()), data);
  const AttentionOutput other = run(plan_of(op), data);
  double squares = 0;
  double differences = 0;
  for (std::size_t i = 0; i < lanes.out.size(); ++i) {
    const double a = static_cast<double>(element_to_float(op.dtype, lanes.out[i]));
    const double b = static_cast<double>(element_to_float(op.dtype, other.out[i]));
    squares += a * a;
    differences += (a - b) * (a - b);
  }
  EXPECT_GT(squares, 0);
  EXPECT_LT(std::sqrt(differences / squares), 1e-4);
  for (std::size_t h = 0; h < lanes.lse.size(); ++h) {
    if (lanes.lse[h] == other.lse[h]) continue;  // -inf for an empty sequence
    EXPECT_NEAR(lanes.lse[h], other.lse[h], 1e-4f * (1 + std::abs(lanes.lse[h]))) << h;
  }
}

TEST_P(Dataflows, PlacementDoesNotChangeABit) {
  const auto expect_law = [](const AttentionDecode& op, const std::vector<int>& variants) {
    const AttentionData data = make_attention_data(op, {.seed = 22});
    Plan plan = plan_of(op);
    Placement* const keys = placement_of(plan, Operand::keys);  // lut has none
    Placement* const values = placement_of(plan, Operand::values);
    ASSERT_EQ(keys == nullptr, std::holds_alternative<AttentionLut>(plan));
    if (keys != nullptr) *keys = all_global();
    *values = all_global();
    const AttentionOutput far = run(plan, data, op);
    for (const int variant : variants) {
      SCOPED_TRACE(variant);
      if (keys != nullptr) fix_placement(*keys, op.keys, variant);
      fix_placement(*values, op.values, variant == 5 ? 4 : variant);
      expect_same_bits(far, run(plan, data, op));
    }
  };
  expect_law(problem(), {2, 4, 5, 6});
  expect_law(of_integers(), {6});
}

TEST_P(Dataflows, SplitsAndHeadsChangeNoMoreThanRounding) {
  const AttentionDecode op = problem();
  const AttentionData data =
      make_attention_data(op, {.seed = 23, .lengths = LengthPattern::ragged});
  const AttentionResult reference = reference_of(op, data);
  Plan plan = plan_of(op);
  for (const int splits : a_third({1, 2, 7})) {
    for (const int heads : {1, 2, 3}) {
      ASSERT_TRUE(change_own(
          plan, [&](auto& own) requires requires { own.heads_per_block = 1; } {
            own.splits = splits;
            own.heads_per_block = heads;
          }));
      const AttentionOutput output = run(plan, data);
      EXPECT_TRUE(is_right(reference, output, op.dtype)) << splits << ' ' << heads;
    }
  }
}

TEST_P(Dataflows, ARunRepeatsItsBitsInEveryOrderOfLanes) {
  const AttentionDecode op = problem();
  const AttentionData data = make_attention_data(op, {.seed = 24});
  const AttentionOutput once = run(plan_of(op), data);
  for (const std::size_t order : {0u, 1u, 2u}) {
    expect_same_bits(once, run(plan_of(op), data, op, order));
  }
}

TEST_P(Dataflows, CodesThatNoQueryNeedsAreNotRead) {
  const AttentionDecode op = problem();
  AttentionData data = make_attention_data(op, {.seed = 25, .lengths = LengthPattern::ragged});
  const AttentionOutput before = run(plan_of(op), data);
  change_unread_codes(data, [](std::uint32_t& word) { word = ~word; });
  expect_same_bits(before, run(plan_of(op), data));
}

TEST_P(Dataflows, AnEmptySequenceGivesZerosAndMinusInfinity) {
  const AttentionDecode op = problem();
  AttentionData data = make_attention_data(op, {.seed = 26});
  data.lengths[1] = 0;
  for (const int splits : {1, 3}) {
    Plan plan = plan_of(op);
    ASSERT_TRUE(change_own(
        plan, [&](auto& own) requires requires { own.splits; } { own.splits = splits; }));
    const AttentionOutput output = run(plan, data);
    const auto width = static_cast<std::size_t>(op.shape.query_heads);
    for (std::size_t h = width; h < 2 * width; ++h) {
      EXPECT_EQ(output.lse[h], -std::numeric_limits<float>::infinity());
      for (std::size_t c = 0; c < 64; ++c) EXPECT_EQ(output.out[h * 64 + c], 0) << h << ' ' << c;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, Dataflows,
                         testing::Values(Plan(AttentionLut{}), Plan(AttentionChannels{})),
                         [](const auto& each) { return std::string(dataflow_name(each.param)); });

class Softmaxes : public Dataflows {};

// A NaN or infinity in one head's query changes no other output, and a NaN makes that head's output
// NaN.
TEST_P(Softmaxes, WhatIsNoNumberStaysInItsHead) {
  AttentionDecode op = of_integers();
  op.shape = {.batch = 2, .query_heads = 10, .kv_heads = 2, .head_dim = 64, .tokens = 70};
  op.keys.hadamard = false;  // which would spread a NaN to all channels
  const AttentionData data = make_attention_data(op, {.seed = 27});
  const AttentionOutput before = run(plan_of(op), data, op);
  const auto head_dim = static_cast<std::size_t>(op.shape.head_dim);
  for (const std::uint16_t none : {std::uint16_t{0x7e00}, std::uint16_t{0x7c00}}) {  // NaN, inf
    constexpr std::size_t kHead = 12;  // in the second sequence
    AttentionData lost = data;
    lost.queries[kHead * head_dim + 5] = none;
    const AttentionOutput after = run(plan_of(op), lost, op);
    for (std::size_t i = 0; i < after.out.size(); ++i) {
      if (i / head_dim != kHead) {
        ASSERT_EQ(after.out[i], before.out[i]) << none << ' ' << i;
      } else if (none == 0x7e00) {
        ASSERT_TRUE(std::isnan(element_to_float(op.dtype, after.out[i]))) << none << ' ' << i;
      }
    }
  }
}

// The block softmax, which lut and channels have too, and the warp softmax.
INSTANTIATE_TEST_SUITE_P(Each, Softmaxes,
                         testing::Values(Plan(AttentionSimt{}), Plan(AttentionMma{})),
                         [](const auto& each) { return std::string(dataflow_name(each.param)); });

class OneDataflow : public Dataflows {};

TEST_F(OneDataflow, EverySplitOfTheChannelsIsRight) {
  AttentionDecode op = problem();
  op.keys.index_bits = 5;  // shares begin within a word
  op.keys.num_codebooks = 1;
  const AttentionData data = make_attention_data(op, {.seed = 27});
  const AttentionResult reference = reference_of(op, data);
  auto plan = rules_plan<AttentionChannels>(op, sweep_gpu());
  for (const auto& [keys, values] :
       {std::pair{1, 8}, std::pair{2, 4}, std::pair{4, 2}, std::pair{8, 1}, std::pair{16, 8}}) {
    plan.key_channel_splits = keys;
    plan.value_channel_splits = values;
    const AttentionOutput output = run(plan, data, op);
    EXPECT_TRUE(is_right(reference, output, op.dtype)) << keys << ' ' << values;
  }
}

// f16 tables round each score by about 1/4000: visible, but no more than that.
TEST_F(OneDataflow, HalvesRoundScoresAndNoMore) {
  const AttentionDecode op = problem();
  const AttentionData data = make_attention_data(op, {.seed = 28});
  const AttentionResult reference = reference_of(op, data);
  auto plan = rules_plan<AttentionLut>(op, sweep_gpu());
  ASSERT_EQ(plan.table_bits, 32);
  const AttentionOutput whole = run(plan, data);
  plan.table_bits = 16;
  for (const int heads : {1, 2, 5}) {
    plan.heads_per_block = heads;
    const AttentionOutput halves = run(plan, data);
    EXPECT_NE(halves.out, whole.out);
    EXPECT_LT(compare(reference.out, halves.out, op.dtype).rel_err, 4e-3) << heads;
  }
}

// A table larger than any other test's, and vectors that leave columns empty.
TEST_F(OneDataflow, LargeTablesAndOddHeadsAreRight) {
  AttentionDecode op = problem();
  op.shape.head_dim = 96;
  op.shape.query_heads = 6;
  op.keys = {.vector_size = 8, .index_bits = 11, .scope = Scope::head};
  op.values = {.vector_size = 2, .index_bits = 4};
  const AttentionData data = make_attention_data(op, {.seed = 29});
  const AttentionResult reference = reference_of(op, data);
  auto plan = rules_plan<AttentionLut>(op, sweep_gpu());
  plan.heads_per_block = 1;
  EXPECT_TRUE(compare(reference.out, run(plan, data, op).out, op.dtype).ok);
}

// 8-bit codes with channel groups: as narrow as a sub-vector, a lane's share of a key, two lanes'
// share of a value, wider than both, and ending within a share.
TEST_F(OneDataflow, FragmentsFindEveryUnitAtEveryLevel) {
  constexpr int kEntries = 256;
  for (const auto& [head_dim, group] : a_third({std::pair{64, 4}, {64, 16}, {64, 32}, {96, 16}})) {
    AttentionDecode op = problem();
    op.shape.head_dim = head_dim;
    op.keys = {
        .vector_size = 4, .index_bits = 8, .num_codebooks = 2, .scope = Scope::channel_group};
    op.values = {.vector_size = 4, .index_bits = 8, .scope = Scope::channel_group};
    op.keys.group_channels = op.values.group_channels = group;
    with_integers(op.keys, group != 4);
    const AttentionData data = make_attention_data(op, {.seed = 30});
    const AttentionResult reference = reference_of(op, data);
    auto plan = rules_plan<AttentionMma>(op, sweep_gpu());
    plan.key_codebook = plan.value_codebook = all_global();
    const AttentionOutput far = run(plan, data, op);
    EXPECT_TRUE(compare(reference.out, far.out, op.dtype).ok) << head_dim << ' ' << group;
    for (const Placement& near : {all_shared(kEntries), all_replicated(kEntries, 2)}) {
      SCOPED_TRACE(std::to_string(group) + " x " + std::to_string(near.copies));
      plan.key_codebook = plan.value_codebook = near;
      expect_same_bits(far, run(plan, data, op));
    }
  }
}

class ScaledSums : public SweepTest<> {};

// int8 values beside full-precision tokens: the scale of all codes counts once, before these.
TEST_F(ScaledSums, AScaleThatIsLeftOutIsFound) {
  AttentionDecode op;
  op.shape = {.batch = 2, .query_heads = 8, .kv_heads = 2, .head_dim = 64, .tokens = 120};
  op.shape.recent_tokens = 20;
  op.keys = op.values = find_format("vecinfer-d4b8i8", "test");
  op.values.smooth = op.values.hadamard = false;
  validate(op, "scale");
  const AttentionData data = make_attention_data(op, {.seed = 23});
  const AttentionResult reference = reference_of(op, data);
  const Fault faults[] = {{"output(i % kQuads, i / kQuads) *= scale;", ";"},
                          {"Values::kScaled || kRaw ? 1.0f", "Values::kScaled ? 1.0f"}};
  expect_faults_found(op, rules_plan(AttentionMma{}, op, sweep_gpu()), faults, [&](Kernel& faulty) {
    return is_right(reference, faulty.run(data), op.dtype);
  });
}

}  // namespace
}  // namespace vqgen::test
