// Layouts of codes (core/format/vq_format.h): a kernel of any dataflow gives equal bits for all
// layouts. Attention by mma may take tokens in another order, which changes only rounding.
#include <gtest/gtest.h>

#include <cstring>

#include "quantizer/pack.h"
#include "runtime/ops/attention_decode/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

class Layouts : public SweepTest<> {};

// Outputs that do not fill a group. `fitting`: rows of an even number of words and whole groups of
// outputs per warp, so that each dataflow takes its fast path; otherwise neither.
Linear grouped_linear(const Plan& like, bool fitting) {
  Linear op;
  op.shape = {.rows = needs_warpgroups(like) ? 9 : 3,
              .out_features = 101,
              .in_features = fitting ? 512 : 520};
  op.weights = {.vector_size = 8, .index_bits = 8, .num_codebooks = 2};
  if (std::holds_alternative<LinearSimt>(like)) op.weights.index_bits = 7;
  return op;
}

Plan linear_plan(const Linear& op, const Plan& like, bool fitting) {
  Plan plan = rules_plan(like, as_problem(op), sweep_gpu());
  if (auto* const tables = std::get_if<LinearLut>(&plan)) {
    tables->threads = 128;
    tables->outputs_per_warp = fitting ? 12 : 6;
  } else if (auto* const slices = std::get_if<LinearSlicedCodebook>(&plan)) {
    slices->threads = 64;
    slices->code_words = 1;  // other layouts separate consecutive words of a row
    slices->columns_per_block = whole_columns(op, *slices);
    slices->outputs_per_warp = fitting ? 12 : 6;
  } else if (auto* const lanes = std::get_if<LinearSimt>(&plan)) {
    lanes->outputs_per_warp = 2;
    lanes->chunk_columns = 64;
    lanes->splits = 2;
  } else if (fitting) {
    EXPECT_TRUE(change_own(
        plan, [](auto& own) requires requires { own.chunk_columns, own.outputs_per_warp = 32; } {
          own.outputs_per_warp = 32;
        }));
  }
  return plan;
}

std::vector<std::uint16_t> run_linear(Linear op, const Plan& plan, LinearData data,
                                      const CodeLayout& layout) {
  op.weights.layout = layout;
  repack(data.weights, layout);
  const Problem problem = as_problem(op);
  const Verdict verdict = check(plan, problem, sweep_gpu());
  EXPECT_TRUE(verdict.ok) << verdict.reason;
  return Kernel(*sweep_backend(), problem, plan, sweep_gpu()).run(data);
}

class LinearLayouts : public Layouts, public testing::WithParamInterface<Plan> {};

TEST_P(LinearLayouts, DoNotChangeABit) {
  if (needs_warpgroups(GetParam()) && !sweep_gpu().warpgroup_products) {
    GTEST_SKIP() << "no products of warp groups";
  }
  for (const bool fitting : {true, false}) {
    const Linear op = grouped_linear(GetParam(), fitting);
    const Plan plan = linear_plan(op, GetParam(), fitting);
    const LinearData data = make_linear_data(op, {.seed = 3});
    const auto plain = run_linear(op, plan, data, {});
    for (const CodeLayout& layout : {CodeLayout{4, 1}, CodeLayout{2, 2}}) {
      EXPECT_EQ(run_linear(op, plan, data, layout), plain)
          << fitting << " " << layout.rows << "x" << layout.words;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearLayouts,
                         testing::Values(Plan(LinearSimt{}), Plan(LinearMma{}), Plan(LinearLut{}),
                                         Plan(LinearWgmma{}), Plan(LinearSlicedCodebook{}),
                                         Plan(LinearWgmmaLargeM{})),
                         [](const auto& test) { return std::string(dataflow_name(test.param)); });

// Tokens and sinks that fill no group; an even number of words per lane for keys, one for values.
AttentionDecode grouped_attention() {
  AttentionDecode op;
  op.shape = {.batch = 2,
              .query_heads = 8,
              .kv_heads = 2,
              .head_dim = 128,
              .tokens = 131,
              .recent_tokens = 9,
              .sinks = 3};
  op.keys = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
  op.keys.hadamard = true;
  op.values = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
  return op;
}

struct CacheLayouts {
  CodeLayout keys, values;
};

// The layouts that suit mma best, and others; the sweep has all pairs.
constexpr std::array kCacheLayouts{CacheLayouts{{2, 2}, {4, 1}}, CacheLayouts{{4, 1}, {2, 2}},
                                   CacheLayouts{{1, 4}, {2, 1}}};

AttentionOutput run_attention(AttentionDecode op, const Plan& plan, AttentionData data,
                              const CacheLayouts& layouts) {
  op.keys.layout = layouts.keys;
  op.values.layout = layouts.values;
  repack(data.keys, layouts.keys);
  repack(data.values, layouts.values);
  const Verdict verdict = check(plan, op, sweep_gpu());
  EXPECT_TRUE(verdict.ok) << verdict.reason;
  return Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data);
}

class AttentionLayouts : public Layouts, public testing::WithParamInterface<Plan> {};

TEST_P(AttentionLayouts, DoNotChangeABit) {
  const AttentionDecode op = grouped_attention();
  Plan plan = rules_plan(GetParam(), op, sweep_gpu());
  ASSERT_TRUE(change_own(
      plan, [](auto& own) requires requires { own.splits; } {
        own.threads = std::min(own.threads, 64);
        own.splits = 2;
      }));
  const AttentionData data = make_attention_data(op, {.seed = 4, .lengths = LengthPattern::ragged});
  const AttentionOutput plain = run_attention(op, plan, data, {});
  for (const CacheLayouts& layouts : kCacheLayouts) {
    const AttentionOutput output = run_attention(op, plan, data, layouts);
    SCOPED_TRACE(layouts.keys.rows);
    EXPECT_EQ(output.out, plain.out);
    EXPECT_EQ(std::memcmp(output.lse.data(), plain.lse.data(), plain.lse.size() * sizeof(float)),
              0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionLayouts,
                         testing::Values(Plan(AttentionSimt{}), Plan(AttentionLut{}),
                                         Plan(AttentionChannels{})),
                         [](const auto& test) { return std::string(dataflow_name(test.param)); });

// Steps of all sizes: of 2 tiles, 2 share their tokens; of 4 tiles, 2 or 4; a single tile shares
// none.
TEST_F(Layouts, FragmentsChangeNoMoreThanRounding) {
  AttentionDecode op = grouped_attention();
  op.shape.recent_tokens = 0;  // so that steps end with the last rows that there are
  auto plan = rules_plan<AttentionMma>(op, sweep_gpu());
  plan.threads = 64;
  plan.splits = 2;
  const AttentionData data = make_attention_data(op, {.seed = 5});
  const AttentionResult reference = reference_of(op, data);
  for (const int tokens : {8, 16, 32}) {
    plan.step_tokens = tokens;
    for (const CacheLayouts& layouts : kCacheLayouts) {
      SCOPED_TRACE(std::to_string(tokens) + " " + std::to_string(layouts.keys.rows));
      const AttentionOutput output = run_attention(op, plan, data, layouts);
      EXPECT_TRUE(is_right(reference, output, op.dtype));
    }
  }
}

// A group's tokens that are beyond the sequence, raw, or in another split are read along but must
// not count, whatever they are.
TEST_F(Layouts, CodesThatNoQueryNeedsMeanNothing) {
  AttentionDecode op = grouped_attention();
  op.keys.layout = {2, 2};
  op.values.layout = {4, 1};
  auto plan = rules_plan<AttentionMma>(op, sweep_gpu());
  plan.splits = 2;
  AttentionData data = make_attention_data(op, {.seed = 6, .lengths = LengthPattern::ragged});
  Kernel kernel(*sweep_backend(), op, plan, sweep_gpu());
  const AttentionOutput before = kernel.run(data);
  for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
    const CodeLayout layout = tensor->format.layout;
    repack(*tensor, {});
    for (std::int64_t row = 0; row < tensor->batch * tensor->heads * tensor->rows; ++row) {
      const auto b = static_cast<std::size_t>(row / (tensor->heads * tensor->rows));
      const std::int64_t token = row % tensor->rows;
      const bool quantized = token < data.lengths[b] && token >= data.sinks[b] &&
                             token < data.lengths[b] - data.recent_counts[b];
      if (quantized) continue;
      const auto first = tensor->codes.begin() + row * tensor->row_words;
      std::for_each(first, first + tensor->row_words, [](std::uint32_t& word) { word = ~word; });
    }
    repack(*tensor, layout);  // changes padding too
  }
  const AttentionOutput after = kernel.run(data);
  EXPECT_EQ(before.out, after.out);
}

// A kernel of one layout must not read another layout's codes as its own.
TEST_F(Layouts, OneTakenForAnotherIsFound) {
  AttentionDecode op = grouped_attention();
  const AttentionData data = make_attention_data(op, {.seed = 7});
  const AttentionResult reference = reference_of(op, data);
  const Plan plan = rules_plan(AttentionSimt{}, op, sweep_gpu());
  AttentionData wrong = data;
  repack(wrong.values, {2, 2});
  const AttentionOutput output = Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(wrong);
  EXPECT_FALSE(compare(reference.out, output.out, op.dtype).ok);
}

}  // namespace
}  // namespace vqgen::test
