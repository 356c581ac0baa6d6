// Finalists and decisions by hand, and laws: order and drift change nothing, and within the noise
// the incumbent stays.
#include "runtime/tuning/search/race.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/quartiles.h"
#include "runtime/verify/random.h"

namespace vqgen {
namespace {

using Times = std::vector<std::optional<double>>;

std::vector<std::size_t> picked(const Times& us, const std::vector<std::size_t>& always) {
  return pick_finalists(us, always);
}

TEST(PickFinalists, AreWithinTenPercentAndThoseThatAlwaysAre) {
  EXPECT_EQ(picked({10, 10.9, 11.1, 30}, {}), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(picked({10, 10.9, 11.1, 30}, {3}), (std::vector<std::size_t>{0, 1, 3}));
  EXPECT_EQ(picked({30, 11.1, {}, 10}, {0, 2}), (std::vector<std::size_t>{3, 0}));
  EXPECT_EQ(picked({{}, {}}, {0}), std::vector<std::size_t>{});
  EXPECT_EQ(picked({}, {}), std::vector<std::size_t>{});
  EXPECT_EQ(picked({5}, {0}), std::vector<std::size_t>{0});
}

TEST(PickFinalists, AreEightAtMost) {
  Times us;
  for (int i = 0; i < 20; ++i) us.emplace_back(10 + 0.01 * i);
  EXPECT_EQ(picked(us, {}), (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(picked(us, {15, 3}), (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 15}));
}

// `us` with relative noise of sigma, and a factor per round that all plans share.
Finalist noisy(const std::string& name, double us, double sigma, int rounds, double drift = 0,
               std::uint64_t seed = 1) {
  Finalist finalist{.name = name, .us = {}};
  Random own(seed, static_cast<std::uint64_t>(name.front()));
  Random common(seed + 7);
  for (int r = 0; r < rounds; ++r) {
    finalist.us.push_back(us * std::exp(sigma * own.normal() + drift * common.normal()));
  }
  return finalist;
}

TEST(Batches, AreEvenAndHaveTwoRoundsEach) {
  for (int rounds = 1; rounds <= 40; ++rounds) {
    std::vector<int> sizes(static_cast<std::size_t>(final_batches(rounds)), 0);
    for (int r = 0; r < rounds; ++r) ++sizes.at(static_cast<std::size_t>(batch_of(r, rounds)));
    const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
    EXPECT_LE(*most - *least, 1) << rounds;
    EXPECT_GE(*least, std::min(rounds, 2)) << rounds;
    EXPECT_LE(sizes.size(), 5u);
  }
}

// Times of `us`, off by `batches` and alternately by half of `within` down and up: batches of two
// rounds.
Finalist in_batches(const std::string& name, double us, const std::vector<double>& batches,
                    double within) {
  Finalist finalist{.name = name, .us = {}};
  for (const double batch : batches) {
    for (const double side : {-0.5, 0.5}) {
      finalist.us.push_back(us * std::exp(batch + side * within));
    }
  }
  return finalist;
}

TEST(Decide, BandIsOfRoundsAndOfBatches) {
  const auto band = [](const std::vector<double>& batches, double within) {
    return decide(
        std::array{in_batches("a", 10, {0, 0, 0, 0, 0}, 0), in_batches("b", 12, batches, within)});
  };
  // Ten differences of batch medians, whose median is 0.02; the rounds do not differ.
  const std::vector<double> spread{0, 0.02, -0.02, 0.01, -0.01};
  const double of_batches = 1.0483 * 0.02;
  const double beside = 1 + 1.2533 * 1.2533 / 5;
  const Decision batches = band(spread, 0);
  EXPECT_EQ(batches.winner, 0u);
  EXPECT_EQ(batches.runner_up, 1u);
  EXPECT_NEAR(batches.behind[1], 0.2, 1e-9);
  EXPECT_EQ(batches.behind[0], 0);
  EXPECT_NEAR(batches.band, 2.5 * of_batches * std::sqrt(beside), 1e-9);
  // The rounds of only one plan differ, so half of all differences are 0.
  EXPECT_EQ(batches.noise, batches.band);
  // Only rounds differ, equally in each batch.
  const double of_rounds = 1.2533 * 1.0483 * 0.1;
  EXPECT_NEAR(band({0, 0, 0, 0, 0}, 0.1).band, 2.5 * of_rounds / std::sqrt(10.0), 1e-9);
  // The effect of rounds on medians of two of them is not a difference of batches.
  EXPECT_NEAR(band(spread, 0.01).band,
              2.5 * std::sqrt(std::pow(of_rounds / 10, 2) / 10 +
                              (std::pow(of_batches, 2) - std::pow(of_rounds / 10, 2) / 2) * beside),
              1e-9);
}

// Drift that all plans share is not in their differences, but it is in those of two runs.
TEST(Decide, DriftOfAllIsInTheNoiseAndNotInTheBand) {
  const std::vector<double> drift{0, 0.02, -0.02, 0.01, -0.01};
  const Decision decision =
      decide(std::array{in_batches("a", 10, drift, 0.001), in_batches("b", 10.3, drift, 0.001)});
  EXPECT_EQ(decision.band, kLeastNoise);
  const double of_batches = std::pow(1.0483 * 0.02, 2) - std::pow(1.2533 * 1.0483 * 0.001, 2) / 2;
  const double of_rounds = std::pow(1.2533 * 1.0483 * 0.001, 2) / 10;
  EXPECT_NEAR(decision.noise,
              2.5 * std::sqrt(2 * (of_rounds + of_batches * (1 + 1.2533 * 1.2533 / 5))), 1e-9);
  EXPECT_EQ(decision.winner, 0u);  // 3 % exceed the band but not the noise
}

TEST(Decide, NoiseIsBoundedBelowAndNoOutlierMovesIt) {
  std::vector<Finalist> finalists{noisy("a", 10, 0, 21), noisy("b", 11, 0, 21)};
  EXPECT_EQ(decide(finalists).noise, kLeastNoise);
  finalists[1].us[3] = 500;
  finalists[0].us[9] = 300;
  EXPECT_EQ(decide(finalists).noise, kLeastNoise);
  EXPECT_EQ(decide(finalists).winner, 0u);
  EXPECT_EQ(decide(std::array{Finalist{.name = "a", .us = {3}}}).noise, kLeastNoise);
  EXPECT_GT(decide(std::array{noisy("a", 10, 0.05, 21)}).noise, 2 * kLeastNoise);
}

TEST(Decide, WithinTheNoiseTheIncumbentStaysElseTheDefaultElseTheExpectedElseTheName) {
  std::vector<Finalist> finalists{noisy("d", 10.00, 0, 9), noisy("c", 10.02, 0, 9),
                                  noisy("b", 10.03, 0, 9), noisy("a", 10.04, 0, 9),
                                  noisy("e", 10.20, 0, 9)};
  const auto winner = [&] { return finalists[decide(finalists).winner].name; };
  EXPECT_EQ(winner(), "a");  // without expectations: the name
  finalists[1].expected_us = 5;
  finalists[4].expected_us = 1;  // beyond the noise
  EXPECT_EQ(winner(), "c");
  finalists[4].chosen = true;
  EXPECT_EQ(winner(), "c");
  finalists[2].chosen = true;
  EXPECT_EQ(winner(), "b");
  finalists[4].incumbent = true;
  EXPECT_EQ(winner(), "b");
  finalists[3].incumbent = true;
  EXPECT_EQ(winner(), "a");
  const Decision decision = decide(finalists);
  EXPECT_EQ(finalists[*decision.runner_up].name, "d");
  EXPECT_FALSE(decide(std::array{finalists[0]}).runner_up);
}

TEST(Decide, NeitherOrderNorDriftOfRoundsMatters) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto all = [&](double drift) {
      return std::vector{noisy("a", 10.3, 0.004, 21, drift, seed),
                         noisy("b", 10.0, 0.004, 21, drift, seed),
                         noisy("c", 10.6, 0.004, 21, drift, seed)};
    };
    std::vector<Finalist> finalists = all(0);
    const Decision still = decide(finalists);
    EXPECT_EQ(finalists[still.winner].name, "b");
    const Decision drifting = decide(all(0.2));  // fifty times a plan's own noise
    EXPECT_EQ(drifting.winner, still.winner);
    EXPECT_NEAR(drifting.band, still.band, 1e-9);
    EXPECT_GT(drifting.noise, 2 * still.noise);
    std::rotate(finalists.begin(), finalists.begin() + 1, finalists.end());
    const Decision rotated = decide(finalists);
    EXPECT_EQ(finalists[rotated.winner].name, "b");
    EXPECT_EQ(rotated.noise, still.noise);
    EXPECT_EQ(finalists[*rotated.runner_up].name, "a");
  }
}

// The band is calibrated: equal plans hardly ever exceed it, and half of it would not be enough.
TEST(Decide, EqualPlansAreWithinTheBand) {
  int beyond = 0;
  int beyond_half = 0;
  constexpr int kRepeats = 400;
  for (int i = 0; i < kRepeats; ++i) {
    const auto seed = static_cast<std::uint64_t>(i + 1);
    const Decision decision =
        decide(std::array{noisy("a", 10, 0.02, 21, 0, seed), noisy("b", 10, 0.02, 21, 0, seed)});
    const double behind = std::max(decision.behind[0], decision.behind[1]);
    beyond += behind > decision.band ? 1 : 0;
    beyond_half += behind > decision.band / 2 ? 1 : 0;
  }
  EXPECT_LE(beyond, kRepeats / 40);
  EXPECT_GT(beyond_half, kRepeats / 40);
}

TEST(FalseTimes, AreNoTimes) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double us : {0.0, -1.0, nan, std::numeric_limits<double>::infinity()}) {
    Measurement m;
    m.time_us = us;
    m.low_us = m.high_us = 1;
    refuse_false_times(m);
    EXPECT_EQ(m.outcome, Outcome::wrong) << us;
    EXPECT_EQ(m.time_us, 0);
    FinalTimes times{{1, us, 1}, Outcome::timed, ""};
    refuse_false_times(times);
    EXPECT_EQ(times.outcome, Outcome::wrong) << us;
    EXPECT_TRUE(times.us.empty());
  }
  Measurement hung;
  hung.outcome = Outcome::hung;
  refuse_false_times(hung);
  EXPECT_EQ(hung.outcome, Outcome::hung);
  Measurement fine;
  fine.time_us = fine.low_us = fine.high_us = 2;
  refuse_false_times(fine);
  EXPECT_EQ(fine.outcome, Outcome::timed);
}

TEST(Quartiles, AreLinearBetweenValues) {
  const Quartiles of_five = quartiles({5, 1, 4, 2, 3});
  EXPECT_EQ(of_five.low, 2);
  EXPECT_EQ(of_five.median, 3);
  EXPECT_EQ(of_five.high, 4);
  EXPECT_EQ(quartiles({1, 2}).median, 1.5);
  EXPECT_EQ(quartiles({7}).high, 7);
}

}  // namespace
}  // namespace vqgen
