// Drawn codes follow their law: the skew of zipf, and a captured histogram per codebook.
#include "runtime/verify/hard_tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "runtime/ops/linear/reference.h"
#include "runtime/verify/hard_input.h"
#include "runtime/verify/row_decoder.h"
#include "tests/message_of.h"
#include "tests/verify/test_data.h"

namespace vqgen {
namespace {

// One head of 2^14 codes of `bits`, two stages, units of `group` channels of 16.
QuantizedTensor tensor_of(int bits, int group) {
  QuantizedTensor t;
  t.format = {.vector_size = 4, .index_bits = bits, .num_codebooks = 2};
  t.format.scope = Scope::channel_group;
  t.format.group_channels = group;
  t.batch = t.heads = 1;
  t.rows = 2048;
  t.columns = 16;
  t.units = 16 / group;
  t.row_words = (8 * bits + 31) / 32;
  return t;
}

void fill(QuantizedTensor& t, const CodeLaw& law, std::uint64_t seed = 1) {
  Random random(seed);
  fill_codes(t, law, random);
}

// [unit * 2 + stage][entry]
std::vector<std::vector<std::int64_t>> histograms(const QuantizedTensor& t) {
  std::vector<std::vector<std::int64_t>> counts(
      static_cast<std::size_t>(t.units * 2),
      std::vector<std::int64_t>(static_cast<std::size_t>(t.format.entries()), 0));
  for (std::int64_t row = 0; row < t.rows; ++row) {
    const std::span<const std::uint32_t> words(t.codes.data() + row * t.row_words,
                                               static_cast<std::size_t>(t.row_words));
    for (std::int64_t i = 0; i < 8; ++i) {
      const std::uint32_t code = read_code(words, i * t.format.index_bits, t.format.index_bits);
      const std::int64_t unit = i / 2 * 4 / t.format.channels_per_group();
      ++counts[static_cast<std::size_t>(unit * 2 + i % 2)][t.format.entry_of(code)];
    }
  }
  return counts;
}

// Pearson's statistic against these weights; classes with an expectation below 5 are merged.
double chi_square(const std::vector<std::int64_t>& counts, const std::vector<double>& weights,
                  int& freedom) {
  const double all = static_cast<double>(std::accumulate(counts.begin(), counts.end(), 0ll));
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0, rare = 0, rare_expected = 0;
  freedom = -1;
  const auto add = [&](double count, double expected) {
    sum += (count - expected) * (count - expected) / expected;
    ++freedom;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = all * weights[i] / total;
    if (expected >= 5) {
      add(static_cast<double>(counts[i]), expected);
    } else {
      rare += static_cast<double>(counts[i]);
      rare_expected += expected;
    }
  }
  if (rare_expected > 0) add(rare, rare_expected);
  return sum;
}

// Five standard deviations of the statistic, which chance does not reach.
void expect_follows(const std::vector<std::int64_t>& counts, const std::vector<double>& weights) {
  int freedom = 0;
  const double statistic = chi_square(counts, weights, freedom);
  ASSERT_GT(freedom, 0);
  EXPECT_LT(statistic, freedom + 5 * std::sqrt(2.0 * freedom) + 5);
}

TEST(HardCodes, ZipfFollowsItsSkew) {
  for (const double skew : {0.5, 1.0, 1.2, 2.5}) {
    QuantizedTensor t = tensor_of(6, 16);
    fill(t, {.pattern = CodePattern::zipf, .skew = skew});
    for (std::vector<std::int64_t> counts : histograms(t)) {
      std::sort(counts.begin(), counts.end(), std::greater<>());
      std::vector<double> weights, flat(64, 1.0);
      for (int rank = 1; rank <= 64; ++rank) weights.push_back(std::pow(rank, -skew));
      // Sorted counts lean slightly to the head, so ranks of equal expectation are merged.
      const auto halves = [](const auto& all) {
        using Value = typename std::remove_cvref_t<decltype(all)>::value_type;
        std::vector<Value> sums;
        for (std::size_t begin = 0, end = 1; begin < all.size(); begin = end, end = 2 * end + 1) {
          sums.push_back(std::accumulate(
              all.begin() + static_cast<std::ptrdiff_t>(begin),
              all.begin() + static_cast<std::ptrdiff_t>(std::min(end, all.size())), Value{0}));
        }
        return sums;
      };
      int freedom = 0;
      EXPECT_LT(chi_square(halves(counts), halves(weights), freedom), 60) << skew;
      EXPECT_GT(chi_square(halves(counts), halves(flat), freedom), 600) << skew;
    }
  }
}

TEST(HardCodes, CapturedFollowsEachCodebook) {
  for (const int group : {4, 8, 16}) {
    QuantizedTensor t = tensor_of(5, group);
    CodeLaw law{.pattern = CodePattern::captured};
    std::vector<std::vector<double>> weights;
    Random random(9);
    for (std::int64_t book = 0; book < t.units * 2; ++book) {
      for (int entry = 0; entry < 32; ++entry) {
        law.counts.push_back(entry % 3 == book % 3 ? 0 : random.below(1000) * random.below(1000));
      }
      weights.emplace_back(law.counts.end() - 32, law.counts.end());
    }
    fill(t, law);
    const auto drawn = histograms(t);
    ASSERT_EQ(drawn.size(), weights.size());
    for (std::size_t book = 0; book < drawn.size(); ++book) {
      expect_follows(drawn[book], weights[book]);
      for (std::size_t entry = 0; entry < 32; ++entry) {
        EXPECT_TRUE(weights[book][entry] > 0 || drawn[book][entry] == 0);
      }
    }
  }
}

// Sums of counts at a profile's limits, and a codebook that was never read.
TEST(HardCodes, CapturedTakesLargeAndEmptyCounts) {
  QuantizedTensor t = tensor_of(2, 16);
  fill(t, {.pattern = CodePattern::captured,
           .counts = {4'000'000'000'000'000, 4'000'000'000'000'000, 0, 0, 0, 0, 0, 0}});
  const auto drawn = histograms(t);
  expect_follows({drawn[0][0], drawn[0][1]}, {1, 1});
  EXPECT_EQ(drawn[0][2] + drawn[0][3], 0);
  expect_follows(drawn[1], {1, 1, 1, 1});
}

// With several items, each unit uses one of them.
TEST(HardCodes, ItemsTakeTurnsOnUnits) {
  QuantizedTensor t = tensor_of(2, 4);  // 4 units of 2 stages of 4 entries
  CodeLaw law{.pattern = CodePattern::captured};
  for (int item = 0; item < 3; ++item) {
    for (int book = 0; book < 8; ++book) {
      for (int entry = 0; entry < 4; ++entry) law.counts.push_back(entry == item ? 1 : 0);
    }
  }
  fill(t, law);
  const auto drawn = histograms(t);
  for (std::size_t book = 0; book < 8; ++book) EXPECT_GT(drawn[book][book / 2 % 3], 0) << book;
}

// The histogram decides the entry's number; signs and shift are uniform.
TEST(HardCodes, ALatticeHasItsSignsByChance) {
  QuantizedTensor t = tensor_of(16, 16);
  t.format.vector_size = 8;
  t.format.decoder = Decoder::e8p;
  t.row_words = 2;
  CodeLaw law{.pattern = CodePattern::captured, .counts = std::vector<std::int64_t>(512, 0)};
  law.counts[17] = law.counts[256 + 200] = 5;
  fill(t, law);
  std::vector<std::int64_t> high(256, 0);
  for (std::size_t row = 0; row < 2048; ++row) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint32_t code = t.codes[row * 2 + i / 2] >> (i % 2 * 16) & 0xffff;
      EXPECT_EQ(code % 256, i % 2 == 0 ? 17u : 200u);
      ++high[code / 256];
    }
  }
  expect_follows(high, std::vector<double>(256, 1.0));
}

TEST(HardCodes, CountsThatDoNotFitAreRefused) {
  for (const std::size_t size : {0u, 8u, 31u, 33u}) {
    QuantizedTensor t = tensor_of(2, 4);
    const CodeLaw law{.pattern = CodePattern::captured,
                      .counts = std::vector<std::int64_t>(size, 1)};
    EXPECT_NE(message_of([&] { fill(t, law); }).find("captured"), std::string::npos) << size;
  }
  Gemv problem;
  problem.shape = {1, 8, 64};
  problem.weights = {.vector_size = 8, .index_bits = 4};
  EXPECT_NE(message_of([&] { make_linear_data(problem, {.codes = CodePattern::captured}); }), "");
}

TEST(HardCodes, OneSeedGivesTheSameCodes) {
  const CodeLaw law{.pattern = CodePattern::captured, .counts = std::vector<std::int64_t>(64, 3)};
  QuantizedTensor a = tensor_of(5, 16), b = a, c = a;
  fill(a, law, 4);
  fill(b, law, 4);
  fill(c, law, 5);
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_NE(a.codes, c.codes);
}

// A problem must be measured on equal codes in every layout.
TEST(HardCodes, TheSameCodesWhateverTheLayout) {
  for (const CodeLaw& law : {CodeLaw{}, CodeLaw{.pattern = CodePattern::one_hot}}) {
    QuantizedTensor plain = tensor_of(9, 4);
    plain.heads = 3;
    plain.rows = 101;
    fill(plain, law);
    for (const CodeLayout& layout : {CodeLayout{4, 1}, CodeLayout{2, 2}, CodeLayout{1, 4}}) {
      QuantizedTensor t = plain;
      t.format.layout = layout;
      fill(t, law);
      ASSERT_EQ(std::ssize(t.codes), t.heads * t.head_words());
      for (std::int64_t head = 0; head < t.heads; ++head) {
        for (std::int64_t row = 0; row < t.rows; ++row) {
          for (std::int64_t word = 0; word < t.row_words; ++word) {
            ASSERT_EQ(t.codes[word_number(t, 0, head, row, word)],
                      plain.codes[word_number(plain, 0, head, row, word)]);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace vqgen
