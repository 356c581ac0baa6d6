// What a wrong command line is answered with.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace vqgen::cli {

// One line for an error of parsing `app`: what is wrong, the help that lists what there is, and
// the option or subcommand that was meant where one is near.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace vqgen::cli
