// What the subcommands that time plans on a device share: --backend, --gpu, --codes, --seed,
// --shared-codebooks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cli/command.h"
#include "runtime/code_distribution.h"
#include "runtime/measure.h"

namespace vqgen::cli {

inline constexpr std::uint64_t kMostPlans = 1'000'000'000;  // that an option may ask for

struct TimingOptions {
  std::string backend = {};
  std::string gpu = {};
  std::string codes = "uniform";
  std::uint64_t seed = 1;
  bool shared_codebooks = false;
};

void add_timing_options(CLI::App& command, TimingOptions& options);

HardInput input_of(const TimingOptions& options, const Problem& problem);

// Those of a host's one layer are warm.
CodebookCaching codebooks_of(const TimingOptions& options);

// How plans of the problem are timed, as the options say.
MeasureOptions measure_options(const TimingOptions& options, const Problem& problem);

std::unique_ptr<Backend> make_backend(const TimingOptions& options);

// Says on stderr what is to be expected of times of `what` on the host backend.
void note_host(const Output& output, const std::string& what);

// The GPU to plan for, which the document then names.
GpuSpec planned_gpu(const TimingOptions& options, const Config& first, const Backend& backend,
                    Output& output);

}  // namespace vqgen::cli
