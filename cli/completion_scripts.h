// The text of completion scripts, and what they share. Each first finds the subcommand: of the
// words so far, those that are one at their place.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/command_tree.h"

namespace vqgen::cli {

std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string fish_completion(const CLI::App& app);

// 'text' of a shell, with what cannot stand in that put otherwise.
std::string quoted(const std::string& text, const std::map<char, std::string>& others);
std::string first_line(const std::string& text);
// The paths of all subcommands, quoted.
std::vector<std::string> quoted_paths(const CLI::App& app);
// The last of a command's arguments, which takes all words that no other takes; null for none.
const CLI::Option* argument_of(const CLI::App& command);
// Those that are no arguments.
std::vector<const CLI::Option*> options_of(const CLI::App& command);
// The name of a kind of values in a script; the first three are what `vqgen list` takes.
const char* word_of(Values values);

}  // namespace vqgen::cli
