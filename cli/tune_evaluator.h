// Where vqgen tune gets its measurements: a worker process on a device of this machine, or a
// recording.
#pragma once

#include <memory>
#include <string>

#include "cli/timing_options.h"
#include "core/plan/tuned_row.h"
#include "runtime/tuning/evaluator.h"

namespace vqgen::cli {

struct TuneSource {
  std::unique_ptr<Evaluator> evaluator;
  MeasurePolicy policy = {};
  int long_calls = 0;  // TuneOptions::long_calls
  TuneEnvironment environment = {};
  std::vector<HotnessProfile> captured = {};  // of the codes, where they are a profile's
  std::string code = {};  // digest of what answers are made from: templates, or the recording
};

// `replay` is the file of a recording, "" for none: then a
// worker with a backend like `backend` measures. Error(bad_input) for a recording without the
// problem, Error(device) for what is missing.
TuneSource make_evaluator(const TimingOptions& timing, const std::string& replay,
                          const Problem& problem, const GpuSpec& gpu, Backend& backend);

}  // namespace vqgen::cli
