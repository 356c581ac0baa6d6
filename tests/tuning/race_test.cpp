// Finalists and decisions by hand, and the laws: order and drift change nothing, within the noise
// who was there stays.
#include "runtime/tuning/race.h"

#include <gtest/gtest.h>

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

// `us` with a relative noise of sigma, all of a round times that round's own.
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

TEST(Decide, NoiseIsThreeStandardErrorsOfThePairedMedian) {
  const Finalist a{.name = "a", .us = {10, 10, 10, 10, 10}};
  const auto times = [](double x) { return 12 * std::exp(x); };
  const Finalist b{.name = "b",
                   .us = {times(0), times(0.02), times(-0.02), times(0.01), times(-0.01)}};
  const Decision decision = decide(std::array{a, b});
  EXPECT_EQ(decision.winner, 0u);
  EXPECT_EQ(decision.runner_up, 1u);
  EXPECT_NEAR(decision.noise, 3 * 1.2533 * 1.4826 * 0.01 / std::sqrt(5.0), 1e-9);
  EXPECT_NEAR(decision.behind[1], 0.2, 1e-9);
  EXPECT_EQ(decision.behind[0], 0);
}

TEST(Decide, NoiseIsHalfAPercentAtLeastAndNoOutlierMovesIt) {
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
  EXPECT_EQ(winner(), "a");  // no expectation is known: the name
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
    EXPECT_NEAR(drifting.noise, still.noise, 1e-9);
    std::rotate(finalists.begin(), finalists.begin() + 1, finalists.end());
    const Decision rotated = decide(finalists);
    EXPECT_EQ(finalists[rotated.winner].name, "b");
    EXPECT_EQ(rotated.noise, still.noise);
    EXPECT_EQ(finalists[*rotated.runner_up].name, "a");
  }
}

// The band is what it says: of equal plans hardly any is beyond it, and half of it would not do.
TEST(Decide, EqualPlansAreWithinTheNoise) {
  int beyond = 0;
  int beyond_half = 0;
  constexpr int kRepeats = 400;
  for (int i = 0; i < kRepeats; ++i) {
    const auto seed = static_cast<std::uint64_t>(i + 1);
    const Decision decision =
        decide(std::array{noisy("a", 10, 0.02, 21, 0, seed), noisy("b", 10, 0.02, 21, 0, seed)});
    const double behind = std::max(decision.behind[0], decision.behind[1]);
    beyond += behind > decision.noise ? 1 : 0;
    beyond_half += behind > decision.noise / 2 ? 1 : 0;
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
