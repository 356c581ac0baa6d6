// The subcommands and options as they are declared: what completion, the man page and messages are
// made of, so that none of them can say other than the parser does.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace vqgen::cli {

// Subcommands that --help shows, in its order.
std::vector<const CLI::App*> shown_subcommands(const CLI::App& command);
// `command` and all that are shown below it, each before its own.
std::vector<const CLI::App*> all_commands(const CLI::App& command);

// The subcommand of that name. Error(bad_input) of one that is not shown, with the nearest.
const CLI::App& subcommand_of(const CLI::App& command, const std::string& name);

// "vqgen cache pack".
std::string full_name(const CLI::App& command);
// The words after the tool's name: " cache pack", or "" for the tool.
std::string path_of(const CLI::App& command);

// "--gpu", "-h"; none of a positional argument.
std::vector<std::string> names_of(const CLI::Option& option);

// Kinds of option and argument values, for shell completion. Names that `vqgen list` knows may also
// be a JSON file.
enum class Values { none, text, choices, gpus, formats, sweeps, json_files, files };
Values values_of(const CLI::Option& option);
// The names among which an option takes one; empty where it takes others.
std::vector<std::string> choices_of(const CLI::Option& option);
// "GPU", "host|cuda": the value in a synopsis; "" for a flag.
std::string placeholder_of(const CLI::Option& option);
// One line for an error of parsing `app`: what is wrong, the help that lists what there is, and
// the option or subcommand that was meant where one is near.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace vqgen::cli
