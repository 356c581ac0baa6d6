// What `vqgen tune` says of problems and sweeps: the figures that its table and its JSON have in
// common, and both.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
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

// Prints the row, with the heading before the first one, and appends the same and all trials to the
// document's "problems".
void report_problem(const TunedProblem& problem, Output& output);

// Prints what was skipped and the totals, and puts name, gpu, skipped and totals into the document.
void report_sweep(const TunedSweep& sweep, Output& output);

// As the step that is under way: "llama: 120 timed, 3 failed, best 8.12 us, 1.21 times the default,
// 31 s left".
void show_progress(const Output& output, const std::string& name, const TuneProgress& progress);

// The finalists as a table.
void print_tuning(const std::string& name, const TuneResult& result, const Output& output);

}  // namespace vqgen::cli
