// Laws of several query tokens per sequence, in each dataflow: what they are equal to.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/ops/attention_decode/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

constexpr int kMost = 4;

AttentionDecode common_problem(int query_tokens = kMost) {
  AttentionDecode op;
  op.shape = {.batch = 3,
              .query_heads = 10,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 150,
              .recent_tokens = 16,
              .sinks = 3,
              .query_tokens = query_tokens};
  op.keys = {.vector_size = 4, .index_bits = 7, .scope = Scope::head};
  op.keys.smooth = op.keys.hadamard = op.keys.stage_scales = true;
  op.values = {.vector_size = 8, .index_bits = 8, .scope = Scope::head};
  return op;
}

std::size_t row_elements(const AttentionDecode& op) {
  return static_cast<std::size_t>(op.shape.query_heads * op.shape.head_dim);
}

// Rows from number `first` on.
template <class T>
std::vector<T> rows_of(const std::vector<T>& all, std::int64_t first, std::int64_t count,
                       std::size_t elements) {
  const auto begin = all.begin() + first * static_cast<std::ptrdiff_t>(elements);
  return {begin, begin + count * static_cast<std::ptrdiff_t>(elements)};
}
AttentionOutput rows_of(const AttentionOutput& all, std::int64_t first, std::int64_t count,
                        const AttentionDecode& op) {
  return {rows_of(all.out, first, count, row_elements(op)),
          rows_of(all.lse, first, count, static_cast<std::size_t>(op.shape.query_heads))};
}

void expect_near(const AttentionOutput& expected, const AttentionOutput& given, DType dtype) {
  std::vector<double> out, lse;
  for (const std::uint16_t bits : expected.out)
    out.push_back(static_cast<double>(element_to_float(dtype, bits)));
  for (const float each : expected.lse) lse.push_back(static_cast<double>(each));
  EXPECT_TRUE(compare(out, given.out, dtype).ok);
  EXPECT_TRUE(compare_lse(lse, given.lse, dtype, 0.1).ok);
}

bool untouched(const AttentionOutput& rows) {
  return std::all_of(rows.out.begin(), rows.out.end(), [](auto bits) { return bits == 0xffff; }) &&
         std::all_of(rows.lse.begin(), rows.lse.end(), [](float lse) { return lse != lse; });
}

class QueryTokens : public SweepTest<testing::TestWithParam<Plan>> {
 protected:
  // Blocks of int8_mma serve all query tokens of two heads.
  static AttentionDecode problem(int query_tokens = kMost) {
    AttentionDecode op = common_problem(query_tokens);
    if (std::holds_alternative<AttentionInt8Mma>(GetParam())) {
      op.shape.query_heads = 4;
      op.keys.index_bits = 8;
      op.values.vector_size = 4;
      with_integers(op.keys, true);
      with_integers(op.values, true);
    }
    return op;
  }
  // The plan with these splits, merged by the last block if the dataflow can.
  static Kernel kernel(const AttentionDecode& op, int splits = 2) {
    Plan plan = rules_plan(GetParam(), op, sweep_gpu());
    change_own(
        plan, [&](auto& own) requires requires { own.splits; } { own.splits = splits; });
    change_own(
        plan, [&](auto& own) requires requires { own.combine = Combine{}; } {
          own.combine = splits > 1 ? Combine::last_block : Combine::kernel;
        });
    return Kernel(*sweep_backend(), op, plan, sweep_gpu());
  }
};

// One call with all query tokens equals calls with query token j of each sequence alone, on their
// data.
TEST_P(QueryTokens, AtOnceAreStepsOfOne) {
  for (const int page_tokens : {0, 16}) {
    SCOPED_TRACE(page_tokens);
    AttentionDecode op = problem();
    AttentionDecode single = problem(1);
    op.shape.page_tokens = single.shape.page_tokens = page_tokens;
    AttentionData data = make_attention_data(op, {.seed = 41});
    data.lengths[1] = 2;  // two of its query tokens see no key
    const AttentionOutput output = kernel(op).run(data);
    Kernel one = kernel(single);
    for (int j = 0; j < kMost; ++j) {
      AttentionData step = data;
      step.query_start.clear();
      step.queries.clear();
      for (std::int64_t b = 0; b < data.batch; ++b) {
        const std::int64_t row = data.query_rows(b).first + j;
        const auto query = rows_of(data.queries, row, 1, row_elements(op));
        step.queries.insert(step.queries.end(), query.begin(), query.end());
        step.lengths[static_cast<std::size_t>(b)] =
            static_cast<std::int32_t>(std::max<std::int64_t>(data.seen_by(b, row), 0));
      }
      const AttentionOutput expected = one.run(step);
      for (std::int64_t b = 0; b < data.batch; ++b) {
        SCOPED_TRACE(testing::Message() << b << ' ' << j);
        const std::int64_t row = data.query_rows(b).first + j;
        expect_near(rows_of(expected, b, 1, op), rows_of(output, row, 1, op), op.dtype);
      }
    }
  }
}

// Fresh query tokens, which bring their keys and values, give the bits of tokens in the
// recent-token ring.
TEST_P(QueryTokens, FreshAreThoseOfTheWindow) {
  const AttentionDecode op = problem();
  AttentionData fresh = make_attention_data(op, {.seed = 42, .fresh = true});
  fresh.lengths[1] = 0;
  fresh.recent_counts = {kMost, op.shape.recent_tokens - kMost + 1, 8};
  AttentionData appended = fresh;
  appended.new_keys.clear();
  appended.new_values.clear();
  const std::int64_t dim = op.shape.head_dim;
  for (std::int64_t b = 0; b < fresh.batch; ++b) {
    const auto [first, last] = fresh.query_rows(b);
    std::int32_t& length = appended.lengths[static_cast<std::size_t>(b)];
    for (std::int64_t row = first; row < last; ++row, ++length) {
      for (std::int64_t head = 0; head < op.shape.kv_heads; ++head) {
        const std::int64_t from = (row * op.shape.kv_heads + head) * dim;
        const auto put = [&](std::int64_t slot) {
          const std::int64_t to = ((b * op.shape.kv_heads + head) * op.raw_slots() + slot) * dim;
          std::copy_n(fresh.new_keys.begin() + from, dim, appended.raw_keys.begin() + to);
          std::copy_n(fresh.new_values.begin() + from, dim, appended.raw_values.begin() + to);
        };
        put(op.shape.sinks + length % op.shape.recent_tokens);
        if (length < op.shape.sinks) put(length);
      }
    }
  }
  for (const int splits : {1, 3}) {
    Kernel attention = kernel(op, splits);
    expect_same_bits(attention.run(fresh), attention.run(appended));
  }
}

// Rows before the first sequence's, after the last one's, and beyond a sequence's maximum;
// sequences without any.
TEST_P(QueryTokens, RowsOfNoneAreLeftAlone) {
  const AttentionDecode op = problem();
  AttentionData data = make_attention_data(op, {.seed = 43, .counts = LengthPattern::ragged});
  data.query_start = {0, kMost, kMost, kMost + 2};
  data.recent_counts = {3, 5, 0};
  data.queries = make_attention_data(op, {.seed = 43}).queries;
  data.queries.resize((kMost + 2) * row_elements(op));
  AttentionData apart = data;
  constexpr int kBefore = 2;
  constexpr int kPast = 3;
  apart.query_start = {kBefore, kBefore + kMost + kPast, kBefore + kMost + kPast,
                       kBefore + kMost + kPast + 2};
  const auto row = [&](std::int64_t number) {
    return apart.queries.begin() + number * static_cast<std::ptrdiff_t>(row_elements(op));
  };
  apart.queries.insert(row(kMost), kPast * row_elements(op), 0x7e00);  // NaN
  apart.queries.insert(row(0), kBefore * row_elements(op), 0x7e00);
  for (const int splits : {1, 3}) {
    Kernel attention = kernel(op, splits);
    const AttentionOutput close = attention.run(data);
    const AttentionOutput output = attention.run(apart);
    EXPECT_TRUE(untouched(rows_of(output, 0, kBefore, op)));
    expect_same_bits(rows_of(close, 0, kMost, op), rows_of(output, kBefore, kMost, op));
    EXPECT_TRUE(untouched(rows_of(output, kBefore + kMost, kPast, op)));
    expect_same_bits(rows_of(close, kMost, 2, op), rows_of(output, kBefore + kMost + kPast, 2, op));
  }
}

// Tokens behind those that a query token sees do not affect it, even if they are the largest
// number.
TEST_P(QueryTokens, DoNotSeeTheOnesBehind) {
  const AttentionDecode op = problem();
  AttentionData data = make_attention_data(op, {.seed = 44, .fresh = true});
  Kernel attention = kernel(op);
  const AttentionOutput before = attention.run(data);
  const auto elements = static_cast<std::size_t>(op.shape.kv_heads * op.shape.head_dim);
  for (std::int64_t b = 0; b < data.batch; ++b) {
    const std::int64_t last = data.query_rows(b).second - 1;
    const auto at = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(last) * elements);
    std::fill_n(data.new_keys.begin() + at, elements, 0x7bff);
    std::fill_n(data.new_values.begin() + at, elements, 0x7bff);
  }
  const AttentionOutput output = attention.run(data);
  for (std::int64_t b = 0; b < data.batch; ++b) {
    const auto [first, last] = data.query_rows(b);
    expect_near(rows_of(before, first, last - first - 1, op),
                rows_of(output, first, last - first - 1, op), op.dtype);
    EXPECT_NE(rows_of(before, last - 1, 1, op).out, rows_of(output, last - 1, 1, op).out);
  }
}

// Keys of int8 entries, whose query is in registers if 9 to 16 heads have few warps, and values
// that leave no registers for it.
TEST(QueryTokensOfBytes, GiveWhatTheReferenceGives) {
  if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int tokens : {3, 4}) {
      for (const int page_tokens : {0, 16}) {
        SCOPED_TRACE(testing::Message()
                     << enum_name(dtype) << ", " << tokens << " tokens, pages of " << page_tokens);
        AttentionDecode op = common_problem(tokens);
        op.dtype = dtype;
        op.shape.query_heads = 8;
        op.shape.page_tokens = page_tokens;
        op.keys.entry_type = EntryType::int8;
        if (tokens == 3)
          op.values = {.vector_size = 2, .index_bits = 16, .decoder = Decoder::scalar};
        auto plan = rules_plan<AttentionMma>(op, sweep_gpu());
        plan.heads_per_block = 4 * tokens;
        plan.threads = 64;
        plan.step_tokens = 16;
        const AttentionData data =
            make_attention_data(op, {.seed = 78, .lengths = LengthPattern::ragged});
        const AttentionOutput output = Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data);
        const AttentionResult reference = reference_of(op, data);
        EXPECT_TRUE(is_right(reference, output, op.dtype));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, QueryTokens,
                         testing::Values(Plan(AttentionSimt{}), Plan(AttentionLut{}),
                                         Plan(AttentionChannels{}), Plan(AttentionMma{}),
                                         Plan(AttentionInt8Mma{})),
                         [](const auto& each) { return std::string(dataflow_name(each.param)); });

}  // namespace
}  // namespace vqgen::test
