// The race: who comes to the finals, and what the finals say. Pure.
//
// Times of a round belong together: what slows the machine slows all finalists of that round. So
// plans are compared by the median over the rounds of log(t_a / t_b), not by their own medians.
//
// Noise band. Deviations of those paired logarithms from their median, of all finalists against the
// fastest together, give sigma = 1.4826 MAD, which outliers do not move. The median of R of them
// is off by 1.2533 sigma / sqrt(R) (its standard error where they are normal), and
//
//   noise = max(0.5 %, 3 * 1.2533 * sigma / sqrt(R))
//
// so that a difference that is none exceeds it once in 370 pairs, and once in some 50 finals of
// eight. 0.5 % is what two runs on one device differ by where rounds of each agree: clocks and
// addresses are drawn anew for each. A finalist alone is compared with its own next round.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/tuning/evaluator.h"

namespace vqgen {

inline constexpr std::size_t kFinalists = 8;
inline constexpr double kLeastNoise = 0.005;

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
  double noise = 0;
  std::vector<double> behind;  // each one's time over the fastest's, less 1, in pairs
};

// Within the noise of the fastest the incumbent stays, else the default; else the lowest expected
// time wins, then the name. Requires one finalist at least, with a round at least. Does not depend
// on the order of the finalists.
Decision decide(std::span<const Finalist> finalists);

}  // namespace vqgen
