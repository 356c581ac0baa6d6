// How many runs a backend times.
#pragma once

#include <vector>

namespace vqgen {

constexpr int kLeastTimedRuns = 3;
constexpr double kEnoughTimedUs = 50'000;

// What `replays` calls of `run()` return, microseconds each. After kLeastTimedRuns none begins once
// those before come to kEnoughTimedUs: a search among slow plans would spend most of its time on
// more of them.
template <class Run>
std::vector<double> timed_runs(int replays, const Run& run) {
  std::vector<double> times;
  double spent = 0;
  for (int i = 0; i < replays && (i < kLeastTimedRuns || spent < kEnoughTimedUs); ++i) {
    times.push_back(run());
    spent += times.back();
  }
  return times;
}

}  // namespace vqgen
