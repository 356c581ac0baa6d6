// The figures of profiles: small ones by hand, random ones by laws.
#include "core/access/access_counts_summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/core/access_counts_samples.h"

namespace vqgen {
namespace {

// Counts of two parts whose sum is `counts`.
AccessCounts halves_of(const std::vector<std::vector<std::int64_t>>& counts) {
  std::vector<std::vector<std::vector<std::int64_t>>> parts;
  for (const auto& codebook : counts) {
    std::vector<std::vector<std::int64_t>> halves(2);
    for (const std::int64_t count : codebook) {
      halves[0].push_back(count / 2);
      halves[1].push_back(count - count / 2);
    }
    parts.push_back(halves);
  }
  return profile_of(parts);
}

TEST(AccessCountsSummary, ByHand) {
  // Mean 4, squares 36 + 4 + 4 + 4 + 16 + 0 + 4 + 4: variance 9.
  const AccessCountsFigures figures = summarise(halves_of({{10, 6, 2, 2, 0, 4, 2, 6}}));
  EXPECT_EQ(figures.accesses, 32);
  EXPECT_EQ(figures.mean, 4);
  EXPECT_EQ(figures.sigma, 3);
  EXPECT_EQ(figures.hot_entries, 0);
  EXPECT_EQ(figures.below_mean, 0.5);
  EXPECT_EQ(figures.top_share, (std::vector<double>{10 / 32.0, 16 / 32.0, 26 / 32.0, 1}));
}

// One of 32 entries has all accesses: mean + 3 sigma is 1 + 3 sqrt(31) = 17.7.
TEST(AccessCountsSummary, OneEntryTakesAll) {
  std::vector<std::int64_t> counts(32, 0);
  counts[17] = 32;
  const AccessCountsFigures total = summarise(halves_of({counts}));
  EXPECT_EQ(total.hot_entries, 1);
  EXPECT_EQ(total.below_mean, 31 / 32.0);
  EXPECT_EQ(total.top_share, std::vector<double>(6, 1.0));
  EXPECT_NEAR(total.sigma, std::sqrt(31.0), 1e-12);
}

TEST(AccessCountsSummary, EvenAccessesAreNeitherHotNorBelow) {
  const AccessCountsFigures total = summarise(halves_of({std::vector<std::int64_t>(16, 5)}));
  EXPECT_EQ(total.sigma, 0);
  EXPECT_EQ(total.hot_entries, 0);
  EXPECT_EQ(total.below_mean, 0);
  for (std::size_t k = 0; k <= 4; ++k) EXPECT_EQ(total.top_share[k], (1 << k) / 16.0);
}

TEST(AccessCountsSummary, WithoutAccessesAllIsZero) {
  const AccessCounts profile = halves_of({std::vector<std::int64_t>(8, 0)});
  const AccessCountsFigures total = summarise(profile);
  EXPECT_EQ(total.mean + total.sigma + total.hot_entries + total.below_mean, 0);
  EXPECT_EQ(total.top_share, std::vector<double>(4, 0.0));
  EXPECT_EQ(share_below(profile, 8, Numbering::current), 0);
  EXPECT_EQ(steadiness(profile).overlap, std::vector<double>(3, 0.0));
}

// Each codebook has its own hottest entries, and a codebook that is read more weighs more.
TEST(AccessCountsSummary, TotalIsOverAllCodebooks) {
  const AccessCountsFigures total = summarise(halves_of({{8, 0, 0, 0}, {0, 0, 12, 12}}));
  EXPECT_EQ(total.accesses, 32);
  EXPECT_EQ(total.mean, 4);
  EXPECT_EQ(total.below_mean, (0.75 + 0.5) / 2);
  EXPECT_EQ(total.top_share, (std::vector<double>{20 / 32.0, 1, 1}));
}

TEST(AccessCountsSummary, ShareBelowABoundary) {
  const AccessCounts profile = halves_of({{1, 2, 3, 4}, {0, 10, 0, 0}});
  const std::vector<double> current{0, 1 / 20.0, 13 / 20.0, 16 / 20.0, 1};
  const std::vector<double> hot{0, 14 / 20.0, 17 / 20.0, 19 / 20.0, 1};
  for (int boundary = 0; boundary <= 4; ++boundary) {
    const auto i = static_cast<std::size_t>(boundary);
    EXPECT_EQ(share_below(profile, boundary, Numbering::current), current[i]);
    EXPECT_EQ(share_below(profile, boundary, Numbering::hot_first), hot[i]);
  }
}

TEST(AccessCountsSummary, LawsOnRandomProfiles) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 50; ++trial) {
    const std::size_t entries = std::size_t{4} << random() % 6;
    std::vector<std::vector<std::int64_t>> counts(1 + random() % 3);
    for (auto& codebook : counts) {
      for (std::size_t i = 0; i < entries; ++i) {
        codebook.push_back(static_cast<std::int64_t>(random() % 1000));
      }
    }
    const AccessCounts profile = halves_of(counts);
    validate(profile, "random");
    const AccessCountsFigures total = summarise(profile);
    for (std::size_t k = 0; k + 1 < total.top_share.size(); ++k) {
      EXPECT_LT(total.top_share[k], total.top_share[k + 1]);
      // The hottest 2^k entries have at least 2^k times the average.
      const double even = static_cast<double>(1 << k) / static_cast<double>(entries);
      EXPECT_GE(total.top_share[k], even);
      const double share = share_below(profile, 1 << k, Numbering::hot_first);
      EXPECT_EQ(total.top_share[k], share);
      EXPECT_LE(share_below(profile, 1 << k, Numbering::current), share);
    }
    EXPECT_EQ(total.top_share.back(), 1);
  }
}

TEST(AccessCountsSteadiness, EqualPartsOverlapInFull) {
  const std::vector<std::int64_t> part{9, 1, 7, 3};
  const AccessCountsSteadiness steady = steadiness(profile_of({{part, part, part}}));
  EXPECT_EQ(steady.overlap, (std::vector<double>{1, 1}));
  EXPECT_EQ(steady.share, (std::vector<std::vector<double>>{{.45, .45, .45}, {.8, .8, .8}}));
}

TEST(AccessCountsSteadiness, ByHand) {
  // The whole is {9, 8, 7, 6}; its hottest two are 0 and 1. Part 0 agrees, part 1 has 2 and 3, part
  // 2 has 1 and 2. Part 3 was never read and does not count.
  const AccessCountsSteadiness steady =
      steadiness(profile_of({{{8, 4, 0, 0}, {1, 1, 4, 6}, {0, 3, 3, 0}, {0, 0, 0, 0}}}));
  EXPECT_EQ(steady.share[0], (std::vector<double>{8 / 12.0, 1 / 12.0, 0, 0}));
  EXPECT_EQ(steady.share[1], (std::vector<double>{1, 2 / 12.0, 3 / 6.0, 0}));
  EXPECT_DOUBLE_EQ(steady.overlap[0], 1 / 3.0);
  EXPECT_DOUBLE_EQ(steady.overlap[1], (1 + 0 + 1 / 3.0) / 3);
}

}  // namespace
}  // namespace vqgen
