// What `vqgen tune` prints of problems and sweeps: a row a problem as it is done, and the totals.
#pragma once

#include "cli/command.h"
#include "cli/tune_figures.h"

namespace vqgen::cli {

// Prints the row, with the heading before the first one, and appends the same and all trials to the
// document's "problems".
void report_problem(const TunedProblem& problem, Output& output);

// Prints what was skipped and the totals, and puts name, gpu, skipped and totals into the document.
void report_sweep(const TunedSweep& sweep, Output& output);

}  // namespace vqgen::cli
