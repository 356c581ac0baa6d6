// Laws that hold for all inputs: changes that must not change the result.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "runtime/ops/attention_decode/reference.h"
#include "runtime/ops/linear/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

class Laws : public SweepTest<> {
 protected:
  static Kernel kernel(const Problem& problem, const Plan& plan, std::size_t order = 0) {
    return Kernel(*sweep_backend(order), problem, plan, sweep_gpu());
  }
};

AttentionDecode attention_problem() {
  AttentionDecode op;
  op.shape = {.batch = 3,
              .query_heads = 8,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 200,
              .recent_tokens = 30,
              .sinks = 3};
  op.keys = {.vector_size = 4, .index_bits = 7, .num_codebooks = 2, .scope = Scope::head};
  op.keys.smooth = op.keys.hadamard = true;
  op.values = {.vector_size = 8, .index_bits = 9, .scope = Scope::channel_group};
  op.values.group_channels = 16;
  return op;
}

Plan attention_plan(const Problem& problem) {
  return choose(problem, sweep_gpu(), {.chooser = Chooser::rules});
}
Plan with_splits(Plan plan, int splits) {
  EXPECT_TRUE(change_own(
      plan, [&](auto& own) requires requires { own.splits; } { own.splits = splits; }));
  return plan;
}

Gemv gemv_problem() {
  Gemv op;
  op.shape = {.rows = 3, .out_features = 100, .in_features = 520};
  op.weights = {.vector_size = 8, .index_bits = 11, .num_codebooks = 2, .scope = Scope::tile};
  op.weights.tile_rows = 48;
  op.weights.tile_columns = 104;
  op.weights.output_scales = op.weights.stage_scales = true;
  return op;
}

// Entry e of every unit and stage moves to place order[e]; codes follow.
void permute_entries(QuantizedTensor& tensor, std::uint64_t seed) {
  const VqFormat& f = tensor.format;
  std::vector<std::uint32_t> order(static_cast<std::size_t>(f.entries()));
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  const auto v = static_cast<std::size_t>(f.vector_size);
  const std::vector<std::uint16_t> before = tensor.codebooks;
  for (std::size_t book = 0; book < before.size() / (order.size() * v); ++book) {
    for (std::size_t e = 0; e < order.size(); ++e) {
      const auto from = before.begin() + static_cast<std::ptrdiff_t>((book * order.size() + e) * v);
      std::copy_n(from, v,
                  tensor.codebooks.begin() +
                      static_cast<std::ptrdiff_t>((book * order.size() + order[e]) * v));
    }
  }
  const auto words = static_cast<std::size_t>(tensor.row_words);
  const auto bits = static_cast<std::size_t>(f.index_bits);
  const auto per_row =
      static_cast<std::size_t>(tensor.columns) / v * static_cast<std::size_t>(f.num_codebooks);
  for (std::size_t row = 0; row < tensor.codes.size() / words; ++row) {
    std::uint32_t* at = tensor.codes.data() + row * words;
    for (std::size_t i = 0; i < per_row; ++i) {
      std::uint32_t code = 0;
      for (std::size_t bit = 0; bit < bits; ++bit) {
        const std::size_t place = i * bits + bit;
        code |= (at[place / 32] >> (place % 32) & 1u) << bit;
      }
      for (std::size_t bit = 0; bit < bits; ++bit) {
        const std::size_t place = i * bits + bit;
        const std::uint32_t mask = 1u << (place % 32);
        at[place / 32] =
            (order[code] >> bit & 1u) != 0 ? at[place / 32] | mask : at[place / 32] & ~mask;
      }
    }
  }
}

TEST_F(Laws, OrderOfEntriesDoesNotChangeABit) {
  const AttentionDecode op = attention_problem();
  AttentionData data = make_attention_data(op, {.seed = 5, .lengths = LengthPattern::ragged});
  Kernel attention = kernel(op, attention_plan(op));
  const AttentionOutput before = attention.run(data);
  permute_entries(data.keys, 1);
  permute_entries(data.values, 2);
  expect_same_bits(before, attention.run(data));

  const Gemv gemv = gemv_problem();
  LinearData weights = make_linear_data(gemv, {.seed = 6});
  Kernel product = kernel(gemv, choose(gemv, sweep_gpu(), {.chooser = Chooser::rules}));
  const auto y = product.run(weights);
  permute_entries(weights.weights, 3);
  EXPECT_EQ(y, product.run(weights));
}

TEST_F(Laws, PlacementDoesNotChangeABit) {
  const AttentionDecode op = attention_problem();
  const AttentionData data = make_attention_data(op, {.seed = 7});
  Plan plan = attention_plan(op);
  Placement& key_codebook = *placement_of(plan, Operand::keys);
  Placement& value_codebook = *placement_of(plan, Operand::values);
  key_codebook = value_codebook = all_global();
  const AttentionOutput far = kernel(op, plan).run(data);
  for (int keys = 0; keys < kPlacements; ++keys) {
    const int values = (keys + 3) % kPlacements;  // never the same level for both
    SCOPED_TRACE(std::to_string(keys) + " " + std::to_string(values));
    fix_placement(key_codebook, op.keys, keys);
    fix_placement(value_codebook, op.values, values);
    if (values == 3) value_codebook.registers = 2;  // 4 groups of 8 entries are too many
    if (values >= 5) value_codebook.copies = 2;
    const Verdict verdict = check(plan, op, sweep_gpu());
    ASSERT_TRUE(verdict.ok) << verdict.reason;
    expect_same_bits(far, kernel(op, plan).run(data));
  }

  const Gemv gemv = gemv_problem();
  const LinearData weights = make_linear_data(gemv, {.seed = 8});
  Plan product = choose(gemv, sweep_gpu(), {.chooser = Chooser::rules});
  Placement& codebook = *placement_of(product, Operand::weights);
  codebook = all_global();
  const auto y = kernel(gemv, product).run(weights);
  for (int placement = 2; placement < kPlacements; ++placement) {
    SCOPED_TRACE(placement);
    fix_placement(codebook, gemv.weights, placement);
    if (codebook.registers > 4) codebook.registers = 4;
    if (codebook.replicated > 2) {  // two units of 64 KiB leave room for half of them twice
      codebook.replicated = gemv.weights.entries() / 2;
      codebook.copies = 2;
    }
    const Verdict verdict = check(product, gemv, sweep_gpu());
    ASSERT_TRUE(verdict.ok) << verdict.reason;
    EXPECT_EQ(y, kernel(gemv, product).run(weights));
  }
}

TEST_F(Laws, SplitChangesNoMoreThanRounding) {
  const AttentionDecode op = attention_problem();
  const AttentionData data = make_attention_data(op, {.seed = 9, .lengths = LengthPattern::ragged});
  const AttentionResult reference = reference_of(op, data);
  for (const int splits : {1, 2, 3, 4, 7, 64}) {
    const AttentionOutput output = kernel(op, with_splits(attention_plan(op), splits)).run(data);
    EXPECT_TRUE(is_right(reference, output, op.dtype)) << splits;
  }
}

TEST_F(Laws, ARunRepeatsItsBits) {
  const AttentionDecode op = attention_problem();
  const AttentionData data = make_attention_data(op, {.seed = 10});
  Kernel attention = kernel(op, attention_plan(op));
  const AttentionOutput once = attention.run(data);
  expect_same_bits(once, attention.run(data));
  for (const std::size_t order : {1u, 2u}) {  // other lane orders, on the host
    expect_same_bits(once, kernel(op, attention_plan(op), order).run(data));
  }
}

TEST_F(Laws, CodesThatNoQueryNeedsAreNotRead) {
  const AttentionDecode op = attention_problem();
  AttentionData data = make_attention_data(op, {.seed = 11, .lengths = LengthPattern::ragged});
  Kernel attention = kernel(op, attention_plan(op));
  const AttentionOutput before = attention.run(data);
  for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
    for (std::int64_t row = 0; row < tensor->batch * tensor->heads * tensor->rows; ++row) {
      const auto b = static_cast<std::size_t>(row / (tensor->heads * tensor->rows));
      const std::int64_t token = row % tensor->rows;
      const bool quantized = token < data.lengths[b] && token >= data.sinks[b] &&
                             token < data.lengths[b] - data.recent_counts[b];
      if (quantized) continue;
      const auto first = tensor->codes.begin() + row * tensor->row_words;
      std::for_each(first, first + tensor->row_words, [](std::uint32_t& word) { word = ~word; });
    }
  }
  expect_same_bits(before, attention.run(data));
}

// 5 chunks in 4 splits are shares of 2, 2, 1 and 0: the sums equal those of 3 splits.
TEST_F(Laws, ASplitWithoutColumnsAddsNothing) {
  Gemv op;
  op.shape = {.rows = 1, .out_features = 64, .in_features = 640};
  for (const bool lattice : {false, true}) {
    op.weights = {.vector_size = 8, .index_bits = lattice ? 16 : 8, .num_codebooks = 2};
    op.weights.decoder = lattice ? Decoder::e8p : Decoder::table;
    op.weights.stage_scales = true;
    const LinearData data = make_linear_data(op, {.seed = 17});
    for (const Plan& plan :
         {Plan(LinearSimt{.threads = 128, .chunk_columns = 128, .splits = 3}),
          Plan(LinearMma{.threads = 128, .chunk_columns = 128, .splits = 3}),
          Plan(LinearWgmma{.threads = 128, .chunk_columns = 128, .splits = 3}),
          Plan(LinearWgmmaLargeM{.threads = 128, .chunk_columns = 128, .splits = 3})}) {
      const Verdict verdict = check(plan, op, sweep_gpu());
      ASSERT_TRUE(verdict.ok) << kernel_name(plan) << ": " << verdict.reason;
      const std::vector<std::uint16_t> expected = kernel(op, plan).run(data);
      EXPECT_TRUE(compare(reference_linear(data), expected, op.dtype).ok) << kernel_name(plan);
      EXPECT_EQ(kernel(op, with_splits(plan, 4)).run(data), expected) << kernel_name(plan);
    }
  }
}

TEST_F(Laws, AnEmptySequenceGivesZerosAndMinusInfinity) {
  const AttentionDecode op = attention_problem();
  AttentionData data = make_attention_data(op, {.seed = 12});
  data.lengths[1] = 0;
  for (const int splits : {1, 3}) {
    const AttentionOutput output = kernel(op, with_splits(attention_plan(op), splits)).run(data);
    const auto width = static_cast<std::size_t>(op.shape.query_heads);
    for (std::size_t h = width; h < 2 * width; ++h) {
      EXPECT_EQ(output.lse[h], -std::numeric_limits<float>::infinity());
      for (std::size_t c = 0; c < 64; ++c) EXPECT_EQ(output.out[h * 64 + c], 0) << h << ' ' << c;
    }
  }
}

// A result is linear in the values: doubling every value entry doubles the output, exactly.
TEST_F(Laws, OutputIsLinearInTheValues) {
  AttentionDecode op = attention_problem();
  op.shape.recent_tokens = op.shape.sinks = 0;
  AttentionData data = make_attention_data(op, {.seed = 13});
  Kernel attention = kernel(op, attention_plan(op));
  const AttentionOutput once = attention.run(data);
  for (std::uint16_t& bits : data.values.codebooks) {
    bits = element_from_float(op.dtype, 2.0f * element_to_float(op.dtype, bits));
  }
  const AttentionOutput twice = attention.run(data);
  for (std::size_t i = 0; i < once.out.size(); ++i) {
    const float expected = 2.0f * element_to_float(op.dtype, once.out[i]);
    EXPECT_NEAR(element_to_float(op.dtype, twice.out[i]), expected,
                std::abs(expected) * 1e-3f + 1e-6f);
  }
}

// The checkers find wrong results: seeded bugs in data that only the kernel sees.
TEST_F(Laws, AWrongResultIsFound) {
  const AttentionDecode op = attention_problem();
  const AttentionData data = make_attention_data(op, {.seed = 14});
  const AttentionResult reference = reference_of(op, data);
  Kernel attention = kernel(op, attention_plan(op));

  AttentionData wrong = data;  // one code bit of the values
  wrong.values.codes[static_cast<std::size_t>(100 * wrong.values.row_words)] ^= 1u;
  wrong.values.codes[static_cast<std::size_t>(101 * wrong.values.row_words)] ^= 4u;
  EXPECT_NE(attention.run(wrong).out, attention.run(data).out);

  wrong = data;  // one token too few
  wrong.lengths[0] -= 1;
  const AttentionOutput output = attention.run(wrong);
  EXPECT_FALSE(compare(reference.out, output.out, op.dtype).ok);

  wrong = data;  // raw tokens read from their codes, and the other way round
  for (std::int32_t& sinks : wrong.sinks) sinks = sinks == 0 ? op.shape.sinks : 0;
  EXPECT_FALSE(compare(reference.out, attention.run(wrong).out, op.dtype).ok);
}

}  // namespace
}  // namespace vqgen::test
