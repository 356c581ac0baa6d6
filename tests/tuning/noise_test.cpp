// Tests whether the noise that a row states covers the difference of two runs. In simulated runs
// all plans share an error of their process and of each batch, which a single run cannot see.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/quartiles.h"
#include "runtime/tuning/search/race.h"
#include "tests/tuning/landscape.h"

namespace vqgen {
namespace {

constexpr int kRounds = 21;
constexpr int kTrials = 400;

// Finalists of one landscape, within 3 % of each other; the first, the default, is within 1 %.
std::vector<Measurement> finalists_of(std::uint64_t seed, int count) {
  Random random(seed, 3);
  std::vector<Measurement> all;
  for (int i = 0; i < count; ++i) {
    Measurement m;
    m.plan = LinearSimt{.splits = i + 1};
    m.time_us = 10 * random.uniform(1, i == 0 ? 1.01 : 1.03);
    all.push_back(std::move(m));
  }
  return all;
}

struct Run {
  std::string winner;
  double us = 0;
  double noise = 0;
  double rounds_noise = 0;  // by the spread of rounds, as if all were of one batch
};

// An estimate without batches: 3 standard errors of the median of pairs, at least half a percent.
double noise_of_rounds(const std::vector<Finalist>& finalists, const Decision& decision) {
  const auto fastest = static_cast<std::size_t>(
      std::min_element(decision.behind.begin(), decision.behind.end()) - decision.behind.begin());
  std::vector<double> off;
  for (std::size_t i = 0; i < finalists.size(); ++i) {
    if (i == fastest) continue;
    std::vector<double> logs;
    for (std::size_t r = 0; r < kRounds; ++r) {
      logs.push_back(std::log(finalists[i].us[r] / finalists[fastest].us[r]));
    }
    const double middle = quartiles(logs).median;
    for (const double each : logs) off.push_back(std::abs(each - middle));
  }
  return std::max(0.005, 3 * 1.2533 * 1.4826 * quartiles(off).median / std::sqrt(double{kRounds}));
}

Run run_of(const std::vector<Measurement>& recorded, const NoiseOptions& options) {
  NoisyReplay replay(recorded, options);
  std::vector<Plan> plans;
  for (const Measurement& each : recorded) plans.push_back(each.plan);
  std::vector<FinalTimes> times = replay.finals(plans, kRounds);
  std::vector<Finalist> finalists;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    finalists.push_back(
        {.name = plan_name(plans[i]), .us = std::move(times[i].us), .chosen = i == 0});
  }
  const Decision decision = decide(finalists);
  const Finalist& winner = finalists[decision.winner];
  return {winner.name, quartiles(winner.us).median, decision.noise,
          noise_of_rounds(finalists, decision)};
}

struct Tally {
  double covered = 0;  // shares of the trials: times within the larger noise,
  double covered_by_rounds = 0;
  double same = 0;   // one winner
  double noise = 0;  // the mean
};

Tally two_runs(NoiseOptions options, int finalists) {
  Tally tally;
  for (std::uint64_t trial = 0; trial < kTrials; ++trial) {
    const std::vector<Measurement> recorded = finalists_of(trial, finalists);
    options.seed = 2 * trial;
    const Run a = run_of(recorded, options);
    options.seed = 2 * trial + 1;
    const Run b = run_of(recorded, options);
    const double apart = std::abs(std::log(a.us / b.us));
    tally.covered += apart <= std::log1p(std::max(a.noise, b.noise));
    tally.covered_by_rounds += apart <= std::log1p(std::max(a.rounds_noise, b.rounds_noise));
    tally.same += a.winner == b.winner;
    tally.noise += (a.noise + b.noise) / 2;
  }
  for (double* each : {&tally.covered, &tally.covered_by_rounds, &tally.same, &tally.noise}) {
    *each /= kTrials;
  }
  return tally;
}

// 0.6 % relative standard deviation, for all plans together and for each plan alone.
constexpr double kOff = 0.006 / 1.4142135623730951;

TEST(Noise, CoversWhatProcessesAndBatchesDifferBy) {
  for (const int finalists : {2, 4, 8}) {
    SCOPED_TRACE(finalists);
    const Tally tally = two_runs({.sigma = 0.001, .batch = kOff, .process = kOff}, finalists);
    EXPECT_GE(tally.covered, 0.95);
    EXPECT_LT(tally.covered_by_rounds, 0.8);  // the spread of rounds does not tell it
    EXPECT_GE(tally.same, 0.85);
    EXPECT_LT(tally.noise, 0.035);  // covering must not come from a large band
  }
}

TEST(Noise, IsTheLeastWhereRunsAgree) {
  const Tally tally = two_runs({.sigma = 0.001}, 8);
  EXPECT_GE(tally.covered, 0.95);
  EXPECT_LT(tally.noise, 1.01 * kLeastNoise);
}

// Drift of all plans, round by round, is in the noise of times and changes no winner.
TEST(Noise, OfTheClockLosesNoWinner) {
  const Tally tally = two_runs({.sigma = 0.001, .drift = 0.01}, 4);
  EXPECT_GE(tally.covered, 0.95);
  EXPECT_GE(tally.same, 0.95);
}

}  // namespace
}  // namespace vqgen
