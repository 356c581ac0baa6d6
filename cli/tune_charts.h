// The pictures of one tuning, as SVG for a page that defines the variables paper, ink, grid, mark
// and a colour flow-0, flow-1, ... for each dataflow of an op, in the order of core/plan/plan.h.
#pragma once

#include <string>

#include "cli/tune_figures.h"

namespace vqgen::cli {

// Every timed candidate that the model has a time for, expected against measured on logarithmic
// axes of one range, coloured by dataflow; on the diagonal the model is right. The winner and the
// default are marked. "" where there is no such candidate.
std::string landscape_svg(const TunedProblem& problem);

// The best time so far, over seconds and over candidates. "" where nothing was timed.
std::string convergence_svg(const TunedProblem& problem);

}  // namespace vqgen::cli
