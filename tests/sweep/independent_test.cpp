// Batch-invariant attention in each dataflow: results do not depend, to the bit, on the rest of the
// batch or on the number of query tokens at once.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/ops/attention_decode/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"
#include "tests/sweep/sequences.h"

namespace vqgen::test {
namespace {

struct Cache {
  int recent_tokens, sinks, page_tokens;
};
constexpr std::array kCaches{Cache{0, 0, 0}, Cache{19, 3, 0}, Cache{0, 0, 16}, Cache{19, 3, 16}};
constexpr int kQueryTokens = 4;

AttentionDecode independent_problem(const Cache& cache, int batch, int query_tokens = 1) {
  AttentionDecode op;
  op.shape = {.batch = batch,
              .query_heads = 10,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 500,
              .recent_tokens = cache.recent_tokens,
              .sinks = cache.sinks,
              .page_tokens = cache.page_tokens,
              .query_tokens = query_tokens,
              .batch_invariant = true};
  op.keys = {.vector_size = 4, .index_bits = 6, .scope = Scope::head};
  op.keys.smooth = op.keys.hadamard = true;
  op.values = {.vector_size = 8, .index_bits = 7, .scope = Scope::head};
  return op;
}

class Independent : public SweepTest<testing::TestWithParam<Plan>> {
 protected:
  // A plan with small rounds, so that each split has several.
  static Plan plan(const AttentionDecode& op) {
    Plan plan = rules_plan(GetParam(), op, sweep_gpu());
    change_own(
        plan, [&](auto& own) requires requires { own.splits; } { own.splits = 3; });
    change_own(
        plan, [&](auto& own) requires requires { own.tile_tokens; } { own.tile_tokens = 24; });
    change_own(plan, [&](AttentionMma& own) {
      own.threads = 64;
      own.step_tokens = 16;
    });
    return plan;
  }
};

TEST_P(Independent, OfTheRestOfTheBatch) {
  for (const Cache& cache : a_third(kCaches)) {
    SCOPED_TRACE(testing::Message() << cache.recent_tokens << ' ' << cache.page_tokens);
    const AttentionDecode op = independent_problem(cache, 5);
    const Plan same = plan(op);
    AttentionData data = make_attention_data(op, {.seed = 61});
    data.lengths = {500, 1, 71, 0, 333};
    const AttentionOutput output = Kernel(*sweep_backend(), op, same, sweep_gpu()).run(data);
    const AttentionResult reference = reference_of(op, data);
    EXPECT_TRUE(is_right(reference, output, op.dtype));
    Kernel alone(*sweep_backend(), independent_problem(cache, 1), same, sweep_gpu());
    for (std::int64_t b = 0; b < data.batch; ++b) {
      SCOPED_TRACE(b);
      expect_same_bits(alone.run(sequence_of(data, b)), part_of(output, b, data.batch));
    }
  }
}

// A captured step has one kernel for all numbers of query tokens.
TEST_P(Independent, OfQueryTokensAtOnce) {
  for (const Cache& cache : a_third(kCaches)) {
    SCOPED_TRACE(testing::Message() << cache.recent_tokens << ' ' << cache.page_tokens);
    const AttentionDecode op = independent_problem(cache, 3, kQueryTokens);
    Kernel attention(*sweep_backend(), op, plan(op), sweep_gpu());
    AttentionData data = make_attention_data(op, {.seed = 62});
    data.lengths = {2, 173, 498};  // two query tokens of the first sequence see no key
    const AttentionOutput output = attention.run(data);
    const auto row_elements = static_cast<std::size_t>(op.shape.query_heads * op.shape.head_dim);
    for (int j = 0; j < kQueryTokens; ++j) {
      AttentionData step = data;
      step.query_start = {0, 1, 2, 3};
      step.queries.clear();
      for (std::int64_t b = 0; b < data.batch; ++b) {
        const std::int64_t row = data.query_rows(b).first + j;
        const auto query = part_of(data.queries, row, data.query_rows());
        step.queries.insert(step.queries.end(), query.begin(), query.end());
        step.lengths[static_cast<std::size_t>(b)] =
            static_cast<std::int32_t>(std::max<std::int64_t>(data.seen_by(b, row), 0));
      }
      ASSERT_EQ(step.queries.size(), 3 * row_elements);
      const AttentionOutput expected = attention.run(step);
      for (std::int64_t b = 0; b < data.batch; ++b) {
        SCOPED_TRACE(testing::Message() << b << ' ' << j);
        const std::int64_t row = data.query_rows(b).first + j;
        expect_same_bits(part_of(expected, b, data.batch), part_of(output, row, data.query_rows()));
      }
    }
  }
}

// Query tokens with their own keys and values, of which the first j are also run alone.
TEST_P(Independent, OfFreshQueryTokensBehind) {
  for (const Cache& cache : a_third(kCaches)) {
    SCOPED_TRACE(testing::Message() << cache.recent_tokens << ' ' << cache.page_tokens);
    const AttentionDecode op = independent_problem(cache, 2, kQueryTokens);
    Kernel attention(*sweep_backend(), op, plan(op), sweep_gpu());
    AttentionData data = make_attention_data(op, {.seed = 63, .fresh = true});
    data.lengths = {0, 190};
    const AttentionOutput output = attention.run(data);
    for (int count = 1; count < kQueryTokens; ++count) {
      AttentionData fewer = data;  // in the last sequence
      fewer.query_start[2] = kQueryTokens + count;
      const auto keep = [&](auto& member) {
        const auto each = member.size() / (2 * kQueryTokens);
        member.resize(each * static_cast<std::size_t>(kQueryTokens + count));
      };
      keep(fewer.queries);
      keep(fewer.new_keys);
      keep(fewer.new_values);
      AttentionOutput expected = output;
      keep(expected.out);
      keep(expected.lse);
      expect_same_bits(expected, attention.run(fewer));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Independent,
                         testing::Values(Plan(AttentionSimt{}), Plan(AttentionLut{}),
                                         Plan(AttentionChannels{}), Plan(AttentionMma{})),
                         [](const auto& each) { return std::string(dataflow_name(each.param)); });

}  // namespace
}  // namespace vqgen::test
