// How many runs a backend times.
#pragma once

#include <vector>

namespace vqgen {

constexpr int kLeastTimedRuns = 3;
constexpr double kEnoughTimedUs = 50'000;

// What up to `replays` calls of `run()` return, microseconds each: fewer, but kLeastTimedRuns, once
// they come to kEnoughTimedUs. What takes so long varies little, and waiting for it is most of what
// a search over slow plans does.
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
