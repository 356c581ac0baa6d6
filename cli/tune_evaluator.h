// The source of vqgen tune's measurements: a worker process on a device of this machine, or a
// recording.
#pragma once

#include "cli/shared_options.h"
#include "runtime/tuning/search/tune.h"

namespace vqgen::cli {

struct TuneSource {
  std::unique_ptr<Evaluator> evaluator;
  TuneOptions tuning = {};  // seed, long_calls, policy, environment and profiles as they follow
  std::string code = {};    // digest of what answers are made from: templates, or the recording
};

// `replay` is the file of a recording, "" for none: then a
// worker with a backend like `backend` measures. Error(bad_input) for a recording without the
// problem, Error(device) for what is missing.
TuneSource make_evaluator(const TimingOptions& timing, const std::string& replay,
                          const Problem& problem, const GpuSpec& gpu, Backend& backend);

}  // namespace vqgen::cli
