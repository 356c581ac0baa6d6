#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/completion_scripts.h"

namespace vqgen::cli {
namespace {

// Holds: paths; a line for each subcommand, option and argument.
constexpr const char* kFishScript =
    R"fish(# fish completion of vqgen; printed by: vqgen completion fish
function __vqgen_at
    set -l at ''
    for word in (commandline -opc)[2..-1]
        switch "$at $word"
            case {}
                set at "$at $word"
        end
    end
    test "$at" = "$argv[1]"
end
function __vqgen_named
    set -l tool (commandline -opc)[1]
    $tool list $argv[1] 2>/dev/null | string replace -r ' .*' ''
    __fish_complete_suffix .json
end
complete -c vqgen -f
{})fish";

std::string fish_values(const CLI::Option& option) {
  switch (const Values values = values_of(option)) {
    case Values::choices:
      return fmt::format(" -x -a '{}'", fmt::join(choices_of(option), " "));
    case Values::gpus:
    case Values::formats:
    case Values::sweeps:
      return fmt::format(" -x -a '(__vqgen_named {})'", word_of(values));
    case Values::json_files:
      return " -x -a '(__fish_complete_suffix .json)'";
    case Values::files:
      return " -r -F";
    case Values::text:
      return " -x";
    case Values::none:
      break;
  }
  return "";
}

std::string fish_description(const std::string& description) {
  return " -d " + quoted(first_line(description), {{'\'', "\\'"}, {'\\', "\\\\"}});
}

}  // namespace

std::string fish_completion(const CLI::App& app) {
  std::string lines;
  for (const CLI::App* command : all_commands(app)) {
    const std::string at =
        fmt::format("complete -c vqgen -n '__vqgen_at \"{}\"'", path_of(*command));
    for (const CLI::App* each : shown_subcommands(*command)) {
      lines += at + " -a " + each->get_name() + fish_description(each->get_description()) + "\n";
    }
    for (const CLI::Option* option : options_of(*command)) {
      lines += at;
      for (const std::string& name : option->get_snames()) lines += " -s " + name;
      for (const std::string& name : option->get_lnames()) lines += " -l " + name;
      lines += fish_values(*option) + fish_description(option->get_description()) + "\n";
    }
    if (const CLI::Option* const argument = argument_of(*command)) {
      lines += at + fish_values(*argument) + "\n";
    }
  }
  return fmt::format(kFishScript, fmt::join(quoted_paths(app), " "), lines);
}

}  // namespace vqgen::cli
