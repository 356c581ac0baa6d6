#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/completion_scripts.h"

namespace vqgen::cli {
namespace {

// Holds: paths; cases of commands.
constexpr const char* kZshScript = R"zsh(#compdef vqgen
# zsh completion of vqgen; printed by: vqgen completion zsh
_vqgen_named() {{  # what ships under a name, or a file
  local -a names
  names=(${{(f)"$($tool list $1 2>/dev/null | sed 's/ .*//')"}})
  compadd -a names
  _files -g '*.json'
}}
_vqgen() {{
  local at='' tool=$words[1]
  local -a below
  integer i behind=0
  for ((i = 2; i < CURRENT; i++)); do
    case "$at ${{words[i]}}" in
      {}) at+=" ${{words[i]}}" behind=i-1 ;;
    esac
  done
  shift behind words  # the subcommand is no argument of its own
  ((CURRENT -= behind))
  case "$at" in
{}  esac
}}
if [[ $funcstack[1] == _vqgen ]]; then _vqgen "$@"; else compdef _vqgen vqgen; fi
)zsh";

std::string zsh_action(const CLI::Option& option) {
  switch (const Values values = values_of(option)) {
    case Values::choices:
      return fmt::format("({})", fmt::join(choices_of(option), " "));
    case Values::gpus:
    case Values::formats:
    case Values::sweeps:
      return fmt::format(" _vqgen_named {}", word_of(values));  // as it is
    case Values::json_files:
      return "_files -g \"*.json\"";
    case Values::files:
      return "_files";
    default:
      return " ";
  }
}

// "--gpu=[what it is]:GPU:action".
std::string zsh_spec(const CLI::Option& option, const std::string& name) {
  const std::string description = first_line(option.get_description());
  const bool flag = values_of(option) == Values::none;
  const std::string spec = name + (flag ? "" : name.starts_with("--") ? "=" : "+");
  const std::string text =
      quoted(description, {{'\'', "'\\''"}, {'[', "\\["}, {']', "\\]"}, {'\\', "\\\\"}});
  return fmt::format("'{}[{}]{}'", spec, text.substr(1, text.size() - 2),
                     flag ? "" : ":value:" + zsh_action(option));
}

}  // namespace

std::string zsh_completion(const CLI::App& app) {
  std::string commands;
  for (const CLI::App* command : all_commands(app)) {
    commands += fmt::format("    '{}')\n", path_of(*command));
    std::vector<std::string> below;
    for (const CLI::App* each : shown_subcommands(*command)) {
      below.push_back(
          quoted(each->get_name() + ":" + first_line(each->get_description()), {{'\'', "'\\''"}}));
    }
    if (!below.empty()) {
      commands +=
          fmt::format("      below=(\n        {}\n      )\n", fmt::join(below, "\n        "));
      commands += "      _describe -t commands command below\n";
    }
    std::vector<std::string> specs;
    for (const CLI::Option* option : options_of(*command)) {
      for (const std::string& name : names_of(*option)) specs.push_back(zsh_spec(*option, name));
    }
    if (const CLI::Option* const argument = argument_of(*command)) {
      specs.push_back(fmt::format("'*:{}:{}'", argument->get_name(true), zsh_action(*argument)));
    }
    commands += fmt::format("      _arguments \\\n        {}\n      ;;\n",
                            fmt::join(specs, " \\\n        "));
  }
  return fmt::format(kZshScript, fmt::join(quoted_paths(app), " | "), commands);
}

}  // namespace vqgen::cli
