// The subcommands of vqgen dev.
#pragma once

#include "cli/command.h"

namespace vqgen::cli {

AddCommand add_ablate, add_regret, add_space;

}  // namespace vqgen::cli
