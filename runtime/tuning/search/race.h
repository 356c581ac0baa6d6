// The race: who comes to the finals, and what the finals say. Pure.
//
// Times of a round belong together: what slows the machine slows all finalists of that round. So
// plans are compared by the median over the rounds of log(t_a / t_b), not by their own medians.
//
// Noise band. What a median over R rounds in B batches (evaluator.h) is off by has two parts: w, by
// which rounds of a batch differ, and b, by which batches differ beside it, as buffers stand and
// clocks go. Another process is one more draw of b. So the next run differs by a variance of
//
//   V = (1.2533 w)^2 / R  +  b^2 (1 + 1.2533^2 / B)         1.2533: of a median, for a mean's
//
// w and b are 1.0483 times the median of |x - y| over all pairs of rounds of a batch, and of
// medians of batches, of all finalists together: the deviation that such differences have where
// they are normal, which outliers do not move. What w does to medians of batches is taken off b.
//
//   band  = max(0.75 %, 2.5 sqrt(V))             of the logarithms t_a / t_b, a against the fastest
//   noise = max(band, 2.5 sqrt(2 V))              of those of t itself, two runs of them
//
// A challenger wins by more than the band or not at all; what slows all plans alike, such as the
// clock, is not in it. It is in the noise, which a row states, since times of two rows were taken
// in two processes. 0.75 %: of six pairs of sweeps on an H200 the most was 0.64 %. 2.5
// deviations: few batches and finalists tell V so badly that 2 cover but 96 % of the differences
// that 2.5 cover 98.5 % of (tests/tuning/noise_test.cpp draws them).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/tuning/evaluator.h"

namespace vqgen {

inline constexpr std::size_t kFinalists = 8;
inline constexpr double kLeastNoise = 0.0075;

// "timed" with a time that is not above 0 and finite is wrong, and says so: nothing else may
// compare times with NaN.
void refuse_false_times(Measurement& measurement);
void refuse_false_times(FinalTimes& times);

// Indices of those within 10 % of the fastest, the fastest first, `kFinalists` at most; `always`
// are among them, whatever their time. Nothing of us: failed, and never a finalist.
std::vector<std::size_t> pick_finalists(std::span<const std::optional<double>> us,
                                        std::span<const std::size_t> always);

struct Finalist {
  std::string name;        // plan_name()
  std::vector<double> us;  // a round each, as many for all
  std::optional<double> expected_us = std::nullopt;
  bool incumbent = false;
  bool chosen = false;  // the default
};

struct Decision {
  std::size_t winner = 0;
  std::optional<std::size_t> runner_up;  // the fastest of the others
  double band = 0;                       // relative: two finalists nearer than this are equal
  double noise = 0;                      // relative: likewise of times of two runs
  std::vector<double> behind;            // each one's time over the fastest's, less 1, in pairs
};

// Within the band of the fastest the incumbent stays, else the default; else the lowest expected
// time wins, then the name. Requires one finalist at least, with a round at least. Does not depend
// on the order of the finalists.
Decision decide(std::span<const Finalist> finalists);

}  // namespace vqgen
