// What `vqgen ablate` prints: the table of one config, its JSON, and the table of all configs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/command.h"
#include "core/hotness/hotness_profile.h"
#include "runtime/ablate.h"
#include "runtime/counters.h"

namespace vqgen::cli {

struct AblatedConfig {
  const Config& config;
  const GpuSpec& gpu;
  const std::vector<HotnessProfile>& profiles;
  const AblationSpace& space;
  const Ablation& ablation;
  std::map<std::string, Counters> counters = {};  // by the row's name
};

// The row of that name, which must be one.
std::size_t row_of(const AblationSpace& space, const std::string& name);

// Prints the table, and appends the same and more to the document's "configs".
void report_config(const AblatedConfig& of, Output& output);

// best/GC* and best/SC* of each config and their geometric means, over the configs that have them;
// of what report_config() put into the document.
void report_summary(Output& output);

}  // namespace vqgen::cli
