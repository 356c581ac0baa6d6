#include "cli/placement_options.h"

namespace vqgen::cli {

void add_chooser_option(CLI::App& command, std::string& chooser) {
  command
      .add_option("--chooser", chooser,
                  "How plans are chosen: model takes the one that the cost model expects to be the "
                  "fastest, rules goes by rules of thumb")
      ->capture_default_str()
      ->check(CLI::IsMember(enum_names<Chooser>));
}

Chooser chooser_of(const std::string& chooser) {
  for (const Chooser each : {Chooser::rules, Chooser::model}) {
    if (chooser == enum_name(each)) return each;
  }
  return kDefaultChooser;
}

void add_placement_options(CLI::App& command, PlacementOptions& options) {
  command
      .add_option("--chooser", options.chooser,
                  "How the plan is chosen: tuned looks it up in tuned tables, and where no row "
                  "serves does as model; model takes the one that the cost model expects to be the "
                  "fastest, rules goes by rules of thumb")
      ->capture_default_str()
      ->check(CLI::IsMember({kTuned, "model", "rules"}));
  command.add_option("--hotness", options.hotness,
                     "A profile of vqgen profile, by which entries are placed; goes over the "
                     "config's");
  command
      .add_option("--strategy", options.strategy,
                  "How: measured (default) weighs levels by what they save and copies entries for "
                  "each lane; paper is VQ-LLM's: registers and shared memory within the slack")
      ->check(CLI::IsMember({"measured", "paper"}));
}

std::shared_ptr<const TunedTables> tables_for(const PlacementOptions& options,
                                              const Environment& environment) {
  return options.chooser == kTuned ? make_tables(environment) : nullptr;
}

void report_source(const PlanSource& source, Output& output) {
  output.line("plan from {}: {}", enum_name(source.rung), one_line(source.why));
  output.document["plan_from"] = to_json(source);
}

PlanOptions apply(const PlacementOptions& options, Config& config, const TunedTables* tables) {
  if (!options.hotness.empty()) config.hotness = options.hotness;
  if (!options.strategy.empty() && !config.hotness) {
    throw Error(ErrorKind::bad_input,
                "--strategy places entries by a hotness profile; name one with --hotness");
  }
  PlanOptions plan{.chooser = chooser_of(options.chooser), .tables = tables};
  if (options.strategy == "paper") plan.place.strategy = Strategy::paper;
  return plan;
}

Json placement_json(const std::vector<OperandPlacement>& placements) {
  Json json = Json::array();
  for (const OperandPlacement& each : placements) {
    json.push_back({{"operand", enum_name(each.operand)},
                    {"placement", to_json(each.placement)},
                    {"reasons", each.reasons}});
  }
  return json;
}

}  // namespace vqgen::cli
