// Reports of `vqgen tune` on problems and sweeps: the figures that its table and JSON share, and
// both forms.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "runtime/tuning/search/tune.h"
#include "runtime/tuning/sweep/sweep.h"

namespace vqgen::cli {

// Outcome of one problem of a sweep. If nothing could be tuned `why` says so, and only trials,
// space and spent_s of the result count; these may be empty.
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

// Time of the default over the winner's; nullopt unless both have one.
std::optional<double> gain_of(const TunedProblem& problem);

// Measured against expected times, of the trials that have both.
struct ModelFigures {
  std::size_t count = 0;
  double factor = 1;  // exp of the mean of |ln(measured / expected)|
  double worst = 1;   // the largest of the same
};
ModelFigures model_figures(const TuneResult& result);

// Count of an outcome with a reason; most frequent first, then by outcome and reason.
struct FailureCount {
  Outcome outcome;
  std::string why;
  std::size_t count = 0;
};
std::vector<FailureCount> failures_of(const TuneResult& result);
std::size_t timed_of(const TuneResult& result);

// Totals over problems that have a gain; 0 and empty if none has.
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
  double spent_s = 0;          // of all problems
};
TuneTotals totals_of(const TunedSweep& sweep);

// Prints the row, with the heading before the first one, and appends the same and all trials to the
// document's "problems".
void report_problem(const TunedProblem& problem, Output& output);

// Prints what was skipped and the totals, and puts name, gpu, skipped and totals into the document.
void report_sweep(const TunedSweep& sweep, Output& output);

// Shows progress as the present step: "llama: 120 timed, 3 failed, best 8.12 us, 1.21 times the
// default, 31 s left".
void show_progress(const Output& output, const std::string& name, const TuneProgress& progress);

// The finalists as a table.
void print_tuning(const std::string& name, const TuneResult& result, const Output& output);

}  // namespace vqgen::cli
