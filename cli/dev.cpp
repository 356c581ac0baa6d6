// vqgen dev: studies of plans, for those who develop kernels.
#include "cli/dev.h"

namespace vqgen::cli {

void add_dev(CLI::App& app, Output& output) {
  auto* dev = app.add_subcommand("dev", "Study plans: measure many, compare planners, ablate");
  dev->require_subcommand(1);
  add_examples(*dev, "vqgen dev space examples/configs/llama3-8b-up-aqlm-2x8.json --top 10",
               "vqgen dev ablate examples/configs/llama3-8b-up-aqlm-2x8.json");
  add_space(*dev, output);
  add_regret(*dev, output);
  add_ablate(*dev, output);
}

}  // namespace vqgen::cli
