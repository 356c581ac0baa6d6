#include "runtime/verify/hard_input.h"
#include "runtime/ops/linear/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "core/files/digest.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/verify/row_decoder.h"
#include "tests/verify/test_data.h"

namespace vqgen {
namespace {

AttentionDecode problem_of(int head_dim, std::int64_t tokens, const VqFormat& keys) {
  AttentionDecode problem;
  problem.shape = {.batch = 4, .query_heads = 4, .kv_heads = 2, .head_dim = head_dim};
  problem.shape.tokens = tokens;
  problem.shape.recent_tokens = 16;
  problem.shape.sinks = 4;
  problem.keys = keys;
  problem.values = for_values(keys);
  return problem;
}

VqFormat d4b8() { return {.vector_size = 4, .index_bits = 8, .scope = Scope::head}; }

template <class T>
std::string digest(const std::vector<T>& values) {
  return sha256_hex(std::as_bytes(std::span(values))).substr(0, 16);
}

std::vector<std::string> digests(const AttentionData& d) {
  return {digest(d.keys.codes),       digest(d.values.codes), digest(d.keys.codebooks),
          digest(d.values.codebooks), digest(d.keys.smooth),  digest(d.queries),
          digest(d.raw_keys),         digest(d.raw_values),   digest(d.lengths),
          digest(d.recent_counts),    digest(d.sinks)};
}

TEST(HardInput, OneSeedGivesTheSameBytes) {
  AttentionDecode problem = problem_of(32, 50, d4b8());
  problem.keys.hadamard = problem.keys.smooth = true;
  const HardInput input{.seed = 42, .codes = CodePattern::zipf, .lengths = LengthPattern::ragged};
  const auto once = digests(make_attention_data(problem, input));
  EXPECT_EQ(once, digests(make_attention_data(problem, input)));
  const auto other = digests(make_attention_data(problem, {43, input.codes, input.lengths}));
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_NE(once[i], other[i]) << i;
  // The digest holds on every machine: if it changes, figures of old and new runs are not
  // comparable.
  Digest all;
  for (const std::string& part : once) all.add(part);
  EXPECT_EQ(all.hex(), "6bf2126d981cee74e4b80a21820fd8c21ffca79600be6b1a3c34133111b82773");
}

// Every unit and stage has the lattice's table in its own order, and scales that halve per stage.
TEST(HardInput, ALatticeHasItsOwnTable) {
  Gemv problem;
  problem.shape = {.rows = 1, .out_features = 8, .in_features = 64};
  problem.weights = {.vector_size = 8, .index_bits = 16, .num_codebooks = 2};
  problem.weights.scope = Scope::channel_group;
  problem.weights.decoder = Decoder::e8p;
  problem.weights.stage_scales = true;
  const QuantizedTensor t = make_linear_data(problem, {.seed = 5}).weights;
  ASSERT_EQ(t.codebooks.size(), 8u * 2 * 256 * 8);
  using Entry = std::array<float, 8>;
  const auto sorted = [](auto value_at) {
    std::vector<Entry> entries(256);
    for (std::size_t i = 0; i < 256 * 8; ++i) entries[i / 8][i % 8] = value_at(i);
    std::sort(entries.begin(), entries.end());
    return entries;
  };
  const std::vector<float> table = e8p_table();
  const auto expected = sorted([&](std::size_t i) { return table[i]; });
  std::set<std::vector<std::uint16_t>> orders;
  for (std::size_t book = 0; book < 16; ++book) {
    const auto first = t.codebooks.begin() + static_cast<std::ptrdiff_t>(book * 256 * 8);
    orders.emplace(first, first + 256 * 8);
    EXPECT_EQ(sorted([&](std::size_t i) { return f16_to_float(t.codebooks[book * 256 * 8 + i]); }),
              expected);
    const float least = 0.5f / 8 / static_cast<float>(1 + book % 2);
    EXPECT_GE(t.stage_scales[book], least);
    EXPECT_LE(t.stage_scales[book], 4 * least);
  }
  EXPECT_EQ(orders.size(), 16u);
}

TEST(HardInput, ScoresSpreadOverTwoToFour) {
  VqFormat transformed = d4b8();
  transformed.hadamard = transformed.smooth = true;
  VqFormat residual{.vector_size = 8, .index_bits = 6, .num_codebooks = 3};
  residual.stage_scales = true;
  VqFormat grouped{.vector_size = 2, .index_bits = 4, .scope = Scope::channel_group};
  for (const VqFormat& format : {d4b8(), transformed, residual, grouped}) {
    for (const int head_dim : {16, 128, 256}) {
      for (const auto codes : {CodePattern::uniform, CodePattern::zipf, CodePattern::one_hot}) {
        const AttentionDecode problem = problem_of(head_dim, 1000, format);
        const AttentionData data = make_attention_data(problem, {.codes = codes});
        const RowDecoder decoder(data.keys);
        std::vector<double> key(static_cast<std::size_t>(head_dim)), query(key);
        for (std::size_t i = 0; i < query.size(); ++i) {
          query[i] = element_value(data.dtype, data.queries[i]);
        }
        const std::vector<double> q = transformed_query(data.keys, 0, query);
        double sum = 0, squares = 0;
        for (int t = 4; t < 984; ++t) {
          decoder.decode(0, 0, t, key);
          double score = 0;
          for (std::size_t i = 0; i < key.size(); ++i) score += q[i] * key[i];
          score /= std::sqrt(static_cast<double>(head_dim));
          sum += score;
          squares += score * score;
        }
        const double deviation = std::sqrt(squares / 980 - sum / 980 * (sum / 980));
        EXPECT_GT(deviation, 2) << short_name(format) << " " << head_dim << enum_name(codes);
        EXPECT_LT(deviation, 4) << short_name(format) << " " << head_dim << enum_name(codes);
      }
    }
  }
}

TEST(HardInput, EveryValueIsFiniteAndBothSignsOccur) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const auto codes : {CodePattern::uniform, CodePattern::all_equal, CodePattern::max_code}) {
      AttentionDecode problem = problem_of(64, 20, d4b8());
      problem.dtype = dtype;
      problem.keys.num_codebooks = 12;
      problem.keys.stage_scales = true;
      const AttentionData d = make_attention_data(problem, {.codes = codes});
      for (const auto* values : {&d.queries, &d.raw_keys, &d.raw_values, &d.keys.codebooks}) {
        int negative = 0;
        for (const std::uint16_t bits : *values) {
          const double value = element_value(dtype, bits);
          ASSERT_LT(std::abs(value), 300);
          negative += value < 0;
        }
        EXPECT_NEAR(negative, static_cast<double>(values->size()) / 2,
                    static_cast<double>(values->size()) / 8);
      }
    }
  }
}

TEST(HardInput, LaterStagesAreSmallerAndFactorsBounded) {
  AttentionDecode problem = problem_of(64, 20, d4b8());
  problem.keys.num_codebooks = 3;
  problem.keys.stage_scales = problem.keys.smooth = true;
  const QuantizedTensor t = make_attention_data(problem, {}).keys;
  std::vector<double> squares(3);
  for (std::size_t i = 0; i < t.codebooks.size(); ++i) {
    squares[i / 1024 % 3] += std::pow(element_value(t.dtype, t.codebooks[i]), 2);
  }
  EXPECT_GT(squares[0], 3 * squares[1]);
  EXPECT_GT(squares[1], 3 * squares[2]);
  ASSERT_EQ(t.stage_scales.size(), 6u);
  ASSERT_EQ(t.smooth.size(), 128u);
  for (const auto* factors : {&t.stage_scales, &t.smooth}) {
    EXPECT_GE(*std::min_element(factors->begin(), factors->end()), 0.5f);
    EXPECT_LE(*std::max_element(factors->begin(), factors->end()), 2.0f);
  }
}

std::map<std::uint32_t, int> counts(const std::vector<std::uint32_t>& codes) {
  std::map<std::uint32_t, int> result;
  for (const std::uint32_t code : codes) ++result[code];
  return result;
}

int most_frequent(const std::map<std::uint32_t, int>& histogram) {
  int most = 0;
  for (const auto& [code, count] : histogram) most = std::max(most, count);
  return most;
}

// Codes of 2 heads x 64 rows, 32 a row, none raw.
std::vector<std::uint32_t> codes_of(CodePattern pattern, int index_bits) {
  VqFormat format{.vector_size = 2, .index_bits = index_bits, .scope = Scope::head};
  AttentionDecode problem = problem_of(64, 64, format);
  problem.shape.batch = 1;
  problem.shape.recent_tokens = problem.shape.sinks = 0;
  return test::unpack(make_attention_data(problem, {.codes = pattern}).keys);
}

TEST(HardInput, CodesFollowTheirPattern) {
  for (const int bits : {5, 8, 12}) {
    EXPECT_EQ(counts(codes_of(CodePattern::max_code, bits)),
              (std::map<std::uint32_t, int>{{(1u << bits) - 1, 4096}}));
    EXPECT_EQ(counts(codes_of(CodePattern::all_equal, bits)).size(), 1u);
    const std::vector<std::uint32_t> one_hot = codes_of(CodePattern::one_hot, bits);
    EXPECT_GT(counts(one_hot).size(), 20u);
    int common = 0;
    for (auto row = one_hot.begin(); row != one_hot.end(); row += 32) {
      common += most_frequent(counts({row, row + 32}));
    }
    EXPECT_GT(common, 4096 * 9 / 10);
    const auto uniform = counts(codes_of(CodePattern::uniform, bits));
    EXPECT_LT(most_frequent(uniform), 2 * 4096 / (1 << bits) + 30);
    double harmonic = 0;
    for (int rank = 1; rank <= 1 << bits; ++rank) harmonic += 1.0 / rank;
    const auto zipf = counts(codes_of(CodePattern::zipf, bits));
    EXPECT_NEAR(most_frequent(zipf), 4096 / harmonic, 4096 / harmonic / 5);
    EXPECT_GT(zipf.size(), 30u);
  }
}

TEST(HardInput, WhatNobodyReadsIsGarbage) {
  VqFormat format{.vector_size = 4, .index_bits = 5};  // 16 codes: 80 bits in 3 words
  AttentionDecode problem = problem_of(64, 40, format);
  problem.shape.batch = 1;
  problem.shape.recent_tokens = 8;
  problem.shape.sinks = 4;
  AttentionData data = make_attention_data(problem, {.codes = CodePattern::max_code});
  const std::vector<std::uint32_t> codes = test::unpack(data.keys);
  std::set<std::uint32_t> padding;
  for (std::size_t row = 0; row < 80; ++row) {  // 2 heads x 40 tokens
    const std::size_t token = row % 40;
    const bool raw = token < 4 || token >= 32;
    const std::vector<std::uint32_t> of_row(
        codes.begin() + static_cast<std::ptrdiff_t>(row * 16),
        codes.begin() + static_cast<std::ptrdiff_t>(row * 16 + 16));
    EXPECT_EQ(counts(of_row).size() == 1, !raw) << token;
    padding.insert(data.keys.codes[row * 3 + 2] >> 16);
  }
  EXPECT_GT(padding.size(), 70u);
  const AttentionResult before = reference_attention(data, 0.125);
  for (std::size_t row = 0; row < 80; ++row) data.keys.codes[row * 3 + 2] ^= 0xabcd0000u;
  EXPECT_EQ(before.out, reference_attention(data, 0.125).out);
}

TEST(HardInput, RaggedLengthsAndExtentsReachTheirEnds) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    AttentionDecode problem = problem_of(16, 300, d4b8());
    const AttentionData d =
        make_attention_data(problem, {.seed = seed, .lengths = LengthPattern::ragged});
    const std::set<std::int32_t> lengths(d.lengths.begin(), d.lengths.end());
    for (const int length : {0, 1, 300}) EXPECT_TRUE(lengths.contains(length)) << length;
    EXPECT_LE(*lengths.rbegin(), 300);
    EXPECT_EQ(*std::max_element(d.recent_counts.begin(), d.recent_counts.end()), 16);
    EXPECT_EQ(*std::min_element(d.recent_counts.begin(), d.recent_counts.end()), 0);
    EXPECT_EQ(*std::max_element(d.sinks.begin(), d.sinks.end()), 4);
    EXPECT_EQ(*std::min_element(d.sinks.begin(), d.sinks.end()), 0);
    const AttentionData full = make_attention_data(problem, {.seed = seed});
    EXPECT_EQ(full.lengths, std::vector<std::int32_t>(4, 300));
  }
  AttentionDecode bare = problem_of(16, 1, d4b8());
  bare.shape.recent_tokens = bare.shape.sinks = 0;
  const AttentionData d = make_attention_data(bare, {});
  EXPECT_TRUE(d.recent_counts.empty() && d.sinks.empty() && d.raw_keys.empty());
}

TEST(HardInput, QueryTokensKeepToTheRingAndTheRoom) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    AttentionDecode problem = problem_of(16, 300, d4b8());
    problem.shape.query_tokens = 7;
    for (const bool fresh : {false, true}) {
      const AttentionData d = make_attention_data(
          problem, {.seed = seed, .counts = LengthPattern::ragged, .fresh = fresh});
      std::set<std::int64_t> counts;
      for (std::int64_t b = 0; b < d.batch; ++b) {
        const auto at = static_cast<std::size_t>(b);
        const auto [first, last] = d.query_rows(b);
        counts.insert(last - first);
        EXPECT_LE(d.lengths[at] + (fresh ? last - first : 0), 300);
        const bool kept = d.recent_counts[at] == 0 || d.recent_counts[at] + last - first - 1 <= 16;
        EXPECT_TRUE(fresh || kept);
      }
      EXPECT_TRUE(counts.contains(0) && counts.contains(7));
      EXPECT_EQ(d.new_keys.empty(), !fresh);
      EXPECT_NO_THROW(reference_attention(d, 0.1));
    }
  }
}

// Each head has a channel that is 0, one near 300 times the others and one that spreads as far; the
// other channels do not change.
TEST(HardInput, UnevenChannelsAreDeadBiasedAndOutlying) {
  VqFormat scalar{.vector_size = 2, .index_bits = 16, .scope = Scope::channel_group};
  scalar.decoder = Decoder::scalar;
  VqFormat entries{.vector_size = 4, .index_bits = 6, .scope = Scope::channel_group};
  entries.entry_type = EntryType::int8;
  entries.stage_scales = true;
  VqFormat affine{.vector_size = 4, .index_bits = 16};
  affine.decoder = Decoder::affine;
  affine.group_tokens = 16;
  for (const VqFormat& format : {scalar, entries, affine}) {
    AttentionDecode problem = problem_of(64, 256, format);
    problem.shape.recent_tokens = 32;
    const QuantizedTensor even = make_attention_data(problem, {.seed = 4}).keys;
    const QuantizedTensor keys = make_attention_data(problem, {.seed = 4, .uneven = true}).keys;
    const RowDecoder decoder(keys), plain(even);
    const std::size_t wide = format.vector_size == 4 && !format.is_scalar()   ? 4
                             : format.is_scalar() && format.group_tokens == 0 ? 2
                                                                              : 1;
    for (std::int64_t head = 0; head < 2; ++head) {
      std::vector<double> sum(64), squares(64), key(64), other(64);
      std::vector<bool> same(64, true);
      for (std::int64_t row = 0; row < 256; ++row) {
        decoder.decode(1, head, row, key);
        plain.decode(1, head, row, other);
        for (std::size_t i = 0; i < 64; ++i) {
          sum[i] += key[i] / 256, squares[i] += key[i] * key[i] / 256;
          same[i] = same[i] && key[i] == other[i];
        }
      }
      std::size_t dead = 0, biased = 0, outlying = 0;
      for (std::size_t i = 0; i < 64; ++i) {
        const double spread = std::sqrt(std::max(squares[i] - sum[i] * sum[i], 0.0));
        dead += squares[i] == 0;
        biased += sum[i] > 100 && spread < sum[i] / 8;
        outlying += spread > 50 && std::abs(sum[i]) < 8 * spread;
      }
      EXPECT_EQ(dead, wide) << short_name(format);
      EXPECT_EQ(biased, wide) << short_name(format);
      EXPECT_EQ(outlying, wide) << short_name(format);
      EXPECT_EQ(std::count(same.begin(), same.end(), true),
                static_cast<std::ptrdiff_t>(64 - 3 * wide));
    }
  }
}

TEST(HardInput, TheSoftmaxIsNeitherUniformNorOneHot) {
  const AttentionDecode problem = problem_of(128, 1000, d4b8());
  const AttentionData data = make_attention_data(problem, {});
  const AttentionResult result = reference_attention(data, 1 / std::sqrt(128.0));
  for (const double lse : result.lse) {
    EXPECT_GT(lse, std::log(1000) + 1);  // uniform: log(tokens)
    EXPECT_LT(lse, 25);
  }
}

TEST(HardInput, GemvDataIsWholeAndOfOrderOne) {
  Gemv problem;
  problem.shape = {.rows = 3, .out_features = 50, .in_features = 512};
  problem.weights = {.vector_size = 8, .index_bits = 8, .num_codebooks = 2};
  problem.weights.output_scales = true;
  const LinearData data = make_linear_data(problem, {.codes = CodePattern::one_hot});
  EXPECT_EQ(data.x.size(), 3u * 512u);
  EXPECT_EQ(data.weights.codes.size(), 50u * 32u);
  double magnitude = 0;
  int outliers = 0;
  for (const std::uint16_t bits : data.x) outliers += std::abs(element_value(data.dtype, bits)) > 4;
  EXPECT_GT(outliers, 3);
  EXPECT_LT(outliers, 3 * 8 + 1);
  EXPECT_NO_THROW(RowDecoder{data.weights});
  for (const std::uint16_t bits : data.weights.codebooks) {
    magnitude = std::max(magnitude, std::abs(element_value(data.dtype, bits)));
  }
  EXPECT_LT(magnitude, 8);
}

}  // namespace
}  // namespace vqgen
