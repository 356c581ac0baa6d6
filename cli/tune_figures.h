// What a tuned sweep comes to: the figures that its table, its page and its JSON have in common.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/tuning/search/tune.h"
#include "runtime/tuning/sweep/sweep.h"

namespace vqgen::cli {

// What became of one problem of a sweep. Where nothing could be tuned `why` says so, of the result
// then only trials, space and spent_s count, and these may be empty.
struct TunedProblem {
  WorkItem item;
  TuneResult result;
  std::string why = "";
};

struct TunedSweep {
  std::string name;
  std::string gpu;
  std::vector<TunedProblem> problems;
  std::vector<SkippedItem> skipped;  // Work::skipped
};

// Time of the default over that of the winner; nullopt where there is none of both.
std::optional<double> gain_of(const TunedProblem& problem);

// Measured against expected times, of the trials that have both.
struct ModelFigures {
  std::size_t count = 0;
  double factor = 1;  // exp of the mean of |ln(measured / expected)|
  double worst = 1;   // the largest of the same
};
ModelFigures model_figures(const TuneResult& result);

// The finalists, the fastest first; those that failed in the finals, which have no time, last.
std::vector<const Trial*> finalists_of(const TuneResult& result);

// How often an outcome had a reason; the most frequent first, then by outcome and reason.
struct FailureCount {
  Outcome outcome;
  std::string why;
  std::size_t count = 0;
};
std::vector<FailureCount> failures_of(const TuneResult& result);
std::size_t timed_of(const TuneResult& result);

// Of the problems that have a gain; all 0 and empty where none has.
struct TuneTotals {
  std::size_t problems = 0;  // all
  std::size_t tuned = 0;
  double mean_gain = 0;      // geometric
  double weighted_gain = 0;  // geometric, by weight
  double least_gain = 0;
  double most_gain = 0;  // the worst of the defaults
  std::string least_label;
  std::string most_label;
  double default_us = 0;  // sums, each problem as often as its weight says
  double tuned_us = 0;
  std::size_t candidates = 0;  // tried, of all problems
  double spent_s = 0;          // likewise
};
TuneTotals totals_of(const TunedSweep& sweep);

}  // namespace vqgen::cli
