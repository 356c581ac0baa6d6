// What the subcommands that choose plans and place codebooks share: --chooser, --hotness,
// --strategy, and how boundaries are reported.
#pragma once

#include <string>

#include "cli/command.h"
#include "runtime/prepare.h"

namespace vqgen::cli {

struct PlacementOptions {
  std::string hotness;
  std::string strategy;
  std::string chooser{enum_name(kDefaultChooser)};
};

void add_chooser_option(CLI::App& command, std::string& chooser);
// As the option says.
Chooser chooser_of(const std::string& chooser);
void add_placement_options(CLI::App& command, PlacementOptions& options);

// The flags go over the config's own hotness. Error(bad_input) for a strategy without any.
PlanOptions apply(const PlacementOptions& options, Config& config);

// [{"operand", "placement", "reasons"}]
Json placement_json(const std::vector<OperandPlacement>& placements);

}  // namespace vqgen::cli
