// vqgen measure --turns: each config's plan compiled and verified once, then timed when its turn is
// asked for, so that another program can time something else in between.
#pragma once

#include <vector>

#include "cli/timing_options.h"
#include "runtime/prepare.h"

namespace vqgen::cli {

// A config, and the one plan of it that is timed.
struct TurnPlan {
  const Config* config = nullptr;
  Planned planned;
};

// Writes `output.document` as one line on stdout, a measurement a config in its "configs", once all
// of them are verified. Then for each line of stdin, the number of a config from 0 on and "warm" or
// "rotated" where its codebooks are not as the options say, one line: {"config", "codebooks",
// "time_us", "low_us", "high_us", "eager_us"}. Ends with stdin. Error(bad_input) on a line that is
// no number of a config that passed. Each turn begins with `warm_up_ms` of the calls.
void measure_in_turns(const std::vector<TurnPlan>& plans, const TimingOptions& options,
                      double warm_up_ms, Backend& backend, const GpuSpec& gpu, Output& output);

}  // namespace vqgen::cli
