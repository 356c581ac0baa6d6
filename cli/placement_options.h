// What the subcommands that choose plans and place codebooks share: --chooser, --hotness,
// --strategy, and how plans and boundaries are reported.
#pragma once

#include <string>

#include "cli/command.h"
#include "runtime/prepare.h"

namespace vqgen::cli {

inline constexpr const char* kTuned = "tuned";  // tables first, then the default chooser

struct PlacementOptions {
  std::string hotness;
  std::string strategy;
  std::string chooser = kTuned;
};

void add_chooser_option(CLI::App& command, std::string& chooser);
// As the option says.
Chooser chooser_of(const std::string& chooser);
void add_placement_options(CLI::App& command, PlacementOptions& options);

// The flags go over the config's own hotness. Error(bad_input) for a strategy without any.
// With --chooser tuned the plan is looked up in `tables`, which the result points to.
PlanOptions apply(const PlacementOptions& options, Config& config, const TunedTables* tables);
// The tables that --chooser asks for; null where it names a chooser.
std::shared_ptr<const TunedTables> tables_for(const PlacementOptions& options,
                                              const Environment& environment);

// "plan from bucket: ...", and the same as "plan_from".
void report_source(const PlanSource& source, Output& output);

// [{"operand", "placement", "reasons"}]
Json placement_json(const std::vector<OperandPlacement>& placements);

}  // namespace vqgen::cli
