// All commands of vqgen, and how their help is printed.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace vqgen::cli {

// Declares the tool, its commands and the groups of their options. The app and `output` must
// outlive the parse.
void declare_commands(CLI::App& app, Output& output);

// The groups of options in the order of the help; an option of another one is not shown.
const std::vector<std::string>& option_groups();

}  // namespace vqgen::cli
