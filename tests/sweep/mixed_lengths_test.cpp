// Batches of short and long sequences, whose splits are handed out by length, in each dataflow.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/verify/reference_attention.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"
#include "tests/sweep/sequences.h"

namespace vqgen::test {
namespace {

constexpr int kTokens = 600;

AttentionDecode mixed_problem(int batch) {
  AttentionDecode op;
  op.shape = {.batch = batch,
              .query_heads = 4,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = kTokens,
              .window = 10,
              .sinks = 2};
  op.keys = {.vector_size = 4, .index_bits = 6, .scope = Scope::head};
  op.values = {.vector_size = 8, .index_bits = 7, .scope = Scope::head};
  return op;
}

// Mostly of few tokens, one of none, one of one, and each eleventh as long as can be.
void mix_lengths(AttentionData& data) {
  for (std::size_t b = 0; b < data.lengths.size(); ++b) {
    const int length = b % 11 == 2 ? kTokens - 20 : b == 1 ? 0 : b == 3 ? 1 : 20 + int(b) % 7;
    data.lengths[b] = length;
    data.windows[b] = std::min(data.windows[b], length);
    data.sinks[b] = std::min(data.sinks[b], length);
  }
}

void expect_right(const AttentionDecode& op, const AttentionData& data,
                  const AttentionOutput& output) {
  const AttentionResult reference =
      reference_attention(data, static_cast<double>(softmax_scale(op)));
  EXPECT_TRUE(compare(reference.out, output.out, op.dtype).ok);
  EXPECT_TRUE(compare_lse(reference.lse, output.lse, op.dtype).ok);
}

class MixedLengths : public testing::TestWithParam<Plan> {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  }
  // With these splits and small tiles, of which even the short sequences have several.
  static Kernel kernel(const AttentionDecode& op, int splits,
                       Combine combine = Combine::last_block) {
    Plan plan = rules_plan(GetParam(), op, sweep_gpu());
    change_own(
        plan, [&](auto& own) requires requires { own.splits_by = SplitsBy{}; } {
          own.splits = splits;
          own.splits_by = SplitsBy::length;
        });
    change_own(
        plan, [&](auto& own) requires requires { own.combine = Combine{}; } {
          own.combine = combine;
        });
    change_own(
        plan, [&](auto& own) requires requires { own.tile_tokens; } { own.tile_tokens = 16; });
    return Kernel(*sweep_backend(), op, plan, sweep_gpu());
  }
};

TEST_P(MixedLengths, GiveWhatTheReferenceGives) {
  for (const int batch : {2, 5, 40, 70}) {
    const AttentionDecode op = mixed_problem(batch);
    AttentionData data = make_attention_data(op, {.seed = 51});
    mix_lengths(data);
    std::reverse(data.lengths.begin(), data.lengths.begin() + batch % 5);
    for (const int splits : {2, 5}) {
      SCOPED_TRACE(testing::Message() << batch << " sequences, " << splits << " splits");
      const AttentionOutput output = kernel(op, splits).run(data);
      expect_right(op, data, output);
      expect_same_bits(output, kernel(op, splits, Combine::kernel).run(data));
    }
  }
}

// More splits of one sequence than are merged at once.
TEST_P(MixedLengths, OneSequenceMayHaveNearlyAllSplits) {
  const AttentionDecode op = mixed_problem(12);
  AttentionData data = make_attention_data(op, {.seed = 52});
  for (std::size_t b = 0; b < 12; ++b) data.lengths[b] = b == 7 ? kTokens : 0;
  const AttentionOutput output = kernel(op, 4).run(data);
  expect_right(op, data, output);
  data.lengths.assign(12, 0);
  expect_right(op, data, kernel(op, 4).run(data));
}

// Sequences of one length have the splits that each has alone, to the bit.
TEST_P(MixedLengths, OfOneLengthAreThoseAlone) {
  const AttentionDecode op = mixed_problem(3);
  const AttentionData data = make_attention_data(op, {.seed = 53});
  const AttentionOutput output = kernel(op, 3).run(data);
  const AttentionDecode alone = mixed_problem(1);
  Kernel attention = kernel(alone, 3);
  for (std::int64_t b = 0; b < data.batch; ++b) {
    const AttentionOutput expected = attention.run(sequence_of(data, b));
    expect_same_bits(expected, part_of(output, b, data.batch));
  }
}

TEST_P(MixedLengths, OfSeveralQueryTokens) {
  AttentionDecode op = mixed_problem(9);
  op.shape.query_tokens = 3;
  for (const bool fresh : {false, true}) {
    AttentionData data =
        make_attention_data(op, {.seed = 54, .counts = LengthPattern::ragged, .fresh = fresh});
    mix_lengths(data);
    for (const Combine combine : {Combine::last_block, Combine::kernel}) {
      SCOPED_TRACE(testing::Message() << fresh);
      expect_right(op, data, kernel(op, 3, combine).run(data));
    }
  }
}

TEST_P(MixedLengths, InPages) {
  AttentionDecode op = mixed_problem(9);
  op.shape.page_tokens = 16;
  AttentionData data = make_attention_data(op, {.seed = 55});
  mix_lengths(data);
  expect_right(op, data, kernel(op, 4).run(data));
}

INSTANTIATE_TEST_SUITE_P(Of, MixedLengths,
                         testing::Values(Plan(AttentionLanes{}), Plan(AttentionTables{}),
                                         Plan(AttentionChannels{}), Plan(AttentionFragments{})),
                         [](const auto& each) { return std::string(dataflow_name(each.param)); });

}  // namespace
}  // namespace vqgen::test
