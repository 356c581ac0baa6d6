// The race: which plans reach the finals, and what the finals say. Pure.
//
// Times of a round belong together: a slow machine slows all finalists of that round. So plans are
// compared by the median over the rounds of log(t_a / t_b), not by their own medians.
//
// Noise band. A median over R rounds in B batches (evaluator.h) has two errors: w, the spread of
// rounds within a batch, and b, the further spread of batches, whose buffers and clocks differ.
// Another process draws b once more. So the next run differs by a variance of
//
//   V = (1.2533 w)^2 / R  +  b^2 (1 + 1.2533^2 / B)         1.2533: a median's error over a mean's
//
// w and b are 1.0483 times the median of |x - y|, over pairs of rounds in a batch and over pairs of
// batch medians, of all finalists. For normal differences that is the deviation, and outliers do
// not move it. The part of w in the batch medians is subtracted from b.
//
//   band  = max(0.75 %, 2.5 sqrt(V))             of log(t_a / t_b), a against the fastest
//   noise = max(band, 2.5 sqrt(2 V))             of log t itself, between two runs
//
// A challenger must win by more than the band. Effects that slow all plans alike (the clock) are in
// the noise only, which a row states, since two rows come from two processes. V is estimated from
// few samples, so 2.5 deviations are needed where 2 would do (tests/tuning/noise_test.cpp).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/tuning/evaluator.h"

namespace vqgen {

inline constexpr std::size_t kFinalists = 8;
inline constexpr double kLeastNoise = 0.0075;

// Makes a "timed" outcome wrong if its time is not above 0 and finite, with the reason: other code
// must not compare times with NaN.
void refuse_false_times(Measurement& measurement);
void refuse_false_times(FinalTimes& times);

// Indices of the plans within 10 % of the fastest, the fastest first, at most `kFinalists`.
// `always` are among them whatever their time. A plan without us failed and is never a finalist.
std::vector<std::size_t> pick_finalists(std::span<const std::optional<double>> us,
                                        std::span<const std::size_t> always);

struct Finalist {
  std::string name;        // plan_name()
  std::vector<double> us;  // one per round; all finalists have as many
  std::optional<double> expected_us = std::nullopt;
  bool incumbent = false;
  bool chosen = false;  // index of the default
};

struct Decision {
  std::size_t winner = 0;
  std::optional<std::size_t> runner_up;  // the fastest of the others
  double band = 0;                       // relative: two finalists closer than this are equal
  double noise = 0;                      // relative: times of two runs closer than this are equal
  std::vector<double> behind;            // each one's paired time over the fastest's, less 1
};

// Within the band of the fastest, the incumbent wins, else the default, else the lowest expected
// time, then the name. Requires at least one finalist with at least one round. Does not depend on
// the order of the finalists.
Decision decide(std::span<const Finalist> finalists);

}  // namespace vqgen
