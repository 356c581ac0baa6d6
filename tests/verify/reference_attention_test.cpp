#include "runtime/ops/attention_decode/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "runtime/verify/hard_input.h"
#include "runtime/verify/row_decoder.h"
#include "tests/verify/test_data.h"

namespace vqgen {
namespace {

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double error) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i] == b[i] || std::abs(a[i] - b[i]) <= error)
        << i << ": " << a[i] << ", " << b[i];
  }
}

void expect_same(const AttentionResult& a, const AttentionResult& b, double error = 1e-12) {
  expect_near(a.out, b.out, error);
  expect_near(a.lse, b.lse, error);
}

// One query of one head over two tokens, keys (1,0) (2,-1), values (0,1) (0.5,4).
AttentionData two_tokens(const std::vector<double>& query) {
  AttentionData data;
  data.keys = test::tiny_tensor(2, 2, {0, 2});
  data.values = test::tiny_tensor(2, 2, {1, 3});
  data.batch = data.query_heads = 1;
  data.queries = test::f16(query);
  data.lengths = {2};
  return data;
}

AttentionDecode small_problem() {
  AttentionDecode problem;
  problem.shape = {.batch = 5, .query_heads = 6, .kv_heads = 2, .head_dim = 16, .tokens = 37};
  problem.keys = {.vector_size = 4, .index_bits = 5, .num_codebooks = 2, .scope = Scope::head};
  problem.values = {.vector_size = 2, .index_bits = 3, .scope = Scope::tensor};
  return problem;
}

TEST(ReferenceAttention, AgreesWithTwoTokensByHand) {
  const AttentionResult result = reference_attention(two_tokens({1, 2}), 0.5);
  const double p = std::exp(0.5) / (std::exp(0.5) + 1);  // scores 1 and 0, halved
  expect_near(result.out, {(1 - p) * 0.5, p + (1 - p) * 4}, 1e-15);
  expect_near(result.lse, {std::log(std::exp(0.5) + 1)}, 1e-15);
}

// Three query tokens over two tokens: the first has no key, the second sees the first token alone.
TEST(ReferenceAttention, QueryTokensSeeTheTokensUpToTheirOwn) {
  AttentionData data = two_tokens({3, -1, 1, 2, 1, 2});
  data.query_start = {0, 3};
  const AttentionResult cached = reference_attention(data, 0.5);
  const double p = std::exp(0.5) / (std::exp(0.5) + 1);
  expect_near(cached.out, {0, 0, 0, 1, (1 - p) * 0.5, p + (1 - p) * 4}, 1e-15);
  expect_near(cached.lse,
              {-std::numeric_limits<double>::infinity(), 0.5, std::log(std::exp(0.5) + 1)}, 1e-15);
  // The tokens come with the query, behind an empty cache.
  data = two_tokens({1, 2, 1, 2});
  data.query_start = {0, 2};
  data.lengths = {0};
  data.new_keys = test::f16({1, 0, 2, -1});
  data.new_values = test::f16({0, 1, 0.5, 4});
  const AttentionResult fresh = reference_attention(data, 0.5);
  expect_near(fresh.out, {0, 1, (1 - p) * 0.5, p + (1 - p) * 4}, 1e-15);
  data.query_start = {0, 3};
  EXPECT_THROW(reference_attention(data, 0.5), Error);
}

TEST(ReferenceAttention, ReadsNoTokenPastTheLength) {
  AttentionData data = two_tokens({1, 2});
  data.lengths = {1};
  const AttentionResult result = reference_attention(data, 1);
  EXPECT_EQ(result.out, (std::vector<double>{0, 1}));
  EXPECT_EQ(result.lse, std::vector<double>{1});
}

TEST(ReferenceAttention, AnEmptySequenceGivesZerosAndMinusInfinity) {
  AttentionData data = two_tokens({1, 2});
  data.lengths = {0};
  const AttentionResult result = reference_attention(data, 1);
  EXPECT_EQ(result.out, (std::vector<double>{0, 0}));
  EXPECT_EQ(result.lse, std::vector<double>{-kInfinity});
}

TEST(ReferenceAttention, AnOverwhelmingScoreSelectsItsValue) {
  const AttentionResult result = reference_attention(two_tokens({2000, -1000}), 1);
  EXPECT_EQ(result.out, (std::vector<double>{0.5, 4}));  // scores 2000 and 5000, no overflow
  EXPECT_EQ(result.lse, std::vector<double>{5000});
}

// Keys K~ = K diag(1 / lambda) H, exact in f16 for these integers, must score as plain K.
TEST(ReferenceAttention, TransformsCancelOut) {
  constexpr int kDim = 16;
  Random random(3);
  AttentionData plain;
  plain.batch = plain.query_heads = 1;
  plain.lengths = {4};
  std::vector<double> keys, queries;
  for (int i = 0; i < 4 * kDim; ++i) keys.push_back(static_cast<double>(random.below(17) - 8));
  for (int i = 0; i < kDim; ++i) queries.push_back(static_cast<double>(random.below(9) - 4) / 8);
  plain.queries = test::f16(queries);
  QuantizedTensor& t = plain.keys;
  t.format = {.vector_size = kDim, .index_bits = 2};
  t.rows = 4;
  t.columns = kDim;
  t.units = 1;
  t.codebooks = test::f16(keys);
  test::pack(t, {0, 1, 2, 3});
  plain.values = plain.keys;
  AttentionData transformed = plain;
  transformed.keys.format.smooth = transformed.keys.format.hadamard = true;
  for (int i = 0; i < kDim; ++i) transformed.keys.smooth.push_back(i % 3 == 0 ? 0.5f : 2.0f);
  std::vector<double> rotated;
  for (int token = 0; token < 4; ++token) {
    for (int j = 0; j < kDim; ++j) {
      double sum = 0;
      for (int i = 0; i < kDim; ++i) {
        double sign = 0.25;  // bit by bit: the Sylvester matrix is a Kronecker power
        for (int bit = 1; bit < kDim; bit *= 2) {
          if ((i & bit) != 0 && (j & bit) != 0) sign = -sign;
        }
        const auto smooth =
            static_cast<double>(transformed.keys.smooth[static_cast<std::size_t>(i)]);
        sum += keys[static_cast<std::size_t>(token * kDim + i)] / smooth * sign;
      }
      rotated.push_back(sum);
    }
  }
  transformed.keys.codebooks = test::f16(rotated);
  expect_same(reference_attention(plain, 0.25), reference_attention(transformed, 0.25));
}

TEST(ReferenceAttention, PermutedEntriesWithPermutedCodesChangeNothing) {
  const AttentionData data = make_attention_data(small_problem(), {});
  AttentionData permuted = data;
  QuantizedTensor& t = permuted.keys;
  const auto entries = static_cast<std::uint32_t>(t.format.entries());
  const auto renamed = [=](std::uint32_t code) { return (code * 11 + 5) % entries; };
  std::vector<std::uint32_t> codes = test::unpack(t);
  for (std::uint32_t& code : codes) code = renamed(code);
  test::pack(t, codes);
  const auto width = static_cast<std::size_t>(t.format.vector_size);
  for (std::size_t i = 0; i < t.codebooks.size(); ++i) {
    const std::size_t entry = i / width;
    const auto code = static_cast<std::uint32_t>(entry % entries);
    t.codebooks[(entry - code + renamed(code)) * width + i % width] = data.keys.codebooks[i];
  }
  EXPECT_NE(t.codes, data.keys.codes);
  expect_same(reference_attention(data, 0.25), reference_attention(permuted, 0.25), 0);
}

TEST(ReferenceAttention, AnEntrySplitOverTwoStagesIsTheSameEntry) {
  const AttentionData whole = two_tokens({1, 2});
  AttentionData split = whole;
  split.keys.format.num_codebooks = 2;
  split.keys.format.stage_scales = true;
  split.keys.stage_scales = {0.5f, 2};
  split.keys.codebooks = test::f16({2, 8, 8, 2, 8, 6, 2, 2, /**/ 1, -1, 2, 3, 0, -2, 4, 4});
  test::pack(split.keys, {0, 2, 1, 0});  // (1,4)+(0,-4) and (4,1)+(2,-2)
  AttentionData summed = whole;
  summed.keys.codebooks = test::f16({1, 0, 0, 0, 6, -1, 0, 0});
  expect_same(reference_attention(split, 1), reference_attention(summed, 1));
}

// Keeps the sequences unquantized, place by place. Codes have no stages or scales here, so their
// values are exact in 16 bits.
void keep_originals(AttentionData& data) {
  const std::int64_t dim = data.keys.columns;
  const std::int64_t slots = data.max_sinks + data.max_recent_tokens;
  const auto keep = [&](const QuantizedTensor& t, const std::vector<std::uint16_t>& raw) {
    const RowDecoder decoder(t);
    std::vector<std::uint16_t> original;
    std::vector<double> row(static_cast<std::size_t>(dim));
    for (std::int64_t b = 0; b < t.batch; ++b) {
      const auto at = static_cast<std::size_t>(b);
      for (std::int64_t head = 0; head < t.heads; ++head) {
        for (std::int64_t token = 0; token < t.rows; ++token) {
          std::int64_t slot = -1;
          if (token >= data.lengths[at] - data.recent_counts[at]) {
            slot = data.max_sinks + token % data.max_recent_tokens;
          }
          if (token < data.sinks[at]) slot = token;
          decoder.decode(b, head, token, row);
          for (std::int64_t i = 0; i < dim; ++i) {
            const auto source =
                static_cast<std::size_t>(((b * t.heads + head) * slots + slot) * dim + i);
            original.push_back(
                slot >= 0 ? raw[source]
                          : f16_from_float(static_cast<float>(row[static_cast<std::size_t>(i)])));
          }
        }
      }
    }
    return original;
  };
  data.original_keys = keep(data.keys, data.raw_keys);
  data.original_values = keep(data.values, data.raw_values);
}

TEST(ReferenceAttention, WindowsAndSinksAreReadRaw) {
  AttentionDecode problem = small_problem();
  problem.shape.recent_tokens = 7;
  problem.shape.sinks = 3;
  problem.keys.num_codebooks = 1;
  for (const auto lengths : {LengthPattern::full, LengthPattern::ragged}) {
    for (std::uint64_t seed = 1; seed < 9; ++seed) {
      AttentionData data = make_attention_data(problem, {.seed = seed, .lengths = lengths});
      keep_originals(data);
      expect_same(reference_attention(data, 0.25), reference_attention_unquantized(data, 0.25));
    }
  }
}

// Computed by hand, with a sink and a window of 3: flush blocks of 8 end at 8 and 16. Then for
// query tokens, which see fewer, and for new ones behind the cache, whose block is not full.
TEST(ReferenceAttention, BatchesLeaveTheWindowWhole) {
  AttentionData data;
  data.batch = 1;
  data.lengths = {20};
  data.recent_counts = {3};
  data.sinks = {1};
  data.flush_block = 8;
  const auto places = [&](std::int64_t seen) {
    std::string all;
    for (std::int64_t token = 0; token < seen; ++token) {
      all += "cswf"[static_cast<int>(token_place(data, 0, token, seen))];
    }
    return all;
  };
  EXPECT_EQ(places(20), "scccccccccccccccwwww");
  EXPECT_EQ(places(18), "scccccccwwwwwwwwww");
  EXPECT_EQ(places(10), "swwwwwwwww");
  data.recent_counts = {0};
  EXPECT_EQ(places(16), "sccccccccccccccc");
  data.new_keys = {0};
  data.lengths = {15};
  EXPECT_EQ(places(17), "scccccccwwwwwwwff");
}

TEST(ReferenceAttention, RawTokensAreScoredWithTheRawQuery) {
  AttentionDecode problem = small_problem();
  problem.keys.hadamard = problem.keys.smooth = true;
  problem.shape.tokens = problem.shape.recent_tokens = 37;
  AttentionData data = make_attention_data(problem, {});
  data.recent_counts.assign(5, 37);  // everything raw, token t in slot t
  data.original_keys = data.raw_keys;
  data.original_values = data.raw_values;
  const AttentionResult result = reference_attention(data, 0.25);
  expect_same(result, reference_attention_unquantized(data, 0.25), 0);
  data.keys.codes.assign(data.keys.codes.size(), 0);
  data.values.codes.assign(data.values.codes.size(), 0);
  expect_same(result, reference_attention(data, 0.25), 0);
}

// Part `index` of a vector in `parts` equal parts.
template <class T>
std::vector<T> part(const std::vector<T>& values, std::int64_t index, std::int64_t parts) {
  const std::int64_t size = std::ssize(values) / parts;
  return {values.begin() + index * size, values.begin() + (index + 1) * size};
}

TEST(ReferenceAttention, EachQueryHeadReadsItsOwnKvHeadAndSequence) {
  AttentionDecode problem = small_problem();
  problem.keys.hadamard = problem.keys.smooth = problem.keys.stage_scales = true;
  problem.shape.recent_tokens = 6;
  const AttentionData whole = make_attention_data(problem, {.lengths = LengthPattern::ragged});
  const AttentionResult all = reference_attention(whole, 0.25);
  for (std::int64_t b = 0; b < 5; ++b) {
    for (std::int64_t q = 0; q < 6; ++q) {
      const std::int64_t head = q / 3;
      const std::int64_t row = b * 2 + head;
      AttentionData one = whole;
      for (QuantizedTensor* t : {&one.keys, &one.values}) {
        t->codes = part(t->codes, row, 10);
        t->batch = t->heads = 1;
      }
      one.keys.units = 1;
      one.keys.codebooks = part(whole.keys.codebooks, head, 2);
      one.keys.stage_scales = part(whole.keys.stage_scales, head, 2);
      one.keys.smooth = part(whole.keys.smooth, head, 2);
      one.raw_keys = part(whole.raw_keys, row, 10);
      one.raw_values = part(whole.raw_values, row, 10);
      one.batch = one.query_heads = 1;
      one.queries = part(whole.queries, b * 6 + q, 30);
      one.lengths = part(whole.lengths, b, 5);
      one.recent_counts = part(whole.recent_counts, b, 5);
      expect_same({part(all.out, b * 6 + q, 30), part(all.lse, b * 6 + q, 30)},
                  reference_attention(one, 0.25), 0);
    }
  }
}

TEST(ReferenceAttention, RejectsWhatContradictsItself) {
  const AttentionData fine = make_attention_data(small_problem(), {});
  const auto expect_error = [&](auto&& spoil) {
    AttentionData data = fine;
    spoil(data);
    EXPECT_THROW(reference_attention(data, 1), Error);
  };
  expect_error([](AttentionData& d) { d.lengths[0] = 38; });
  expect_error([](AttentionData& d) { d.lengths[0] = -1; });
  expect_error([](AttentionData& d) { d.lengths.pop_back(); });
  expect_error([](AttentionData& d) { d.recent_counts.assign(5, 1); });
  expect_error([](AttentionData& d) { d.query_heads = 5; });
  expect_error([](AttentionData& d) { d.queries.pop_back(); });
  expect_error([](AttentionData& d) { d.raw_keys.push_back(0); });
  expect_error([](AttentionData& d) { d.keys.batch = d.values.batch = 1; });  // for all sequences
  expect_error([](AttentionData& d) { d.values.format.hadamard = true; });
  EXPECT_THROW(reference_attention_unquantized(fine, 1), Error);
}

}  // namespace
}  // namespace vqgen
