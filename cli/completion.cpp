// vqgen completion: the script by which a shell completes vqgen's command lines, made of the
// declared options. Names of GPUs, formats and sweeps are asked of `vqgen list` when they are due.
// Each script first finds the subcommand: of the words so far, those that are one at their place.
#include <fmt/ranges.h>

#include "cli/command.h"
#include "cli/command_tree.h"

namespace vqgen::cli {
namespace {

// The text quoted for a shell, with `others` replaced.
std::string quoted(const std::string& text, const std::map<char, std::string>& others) {
  return "'" + replaced(text, others) + "'";
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// The paths of all subcommands, quoted.
std::vector<std::string> quoted_paths(const CLI::App& app) {
  std::vector<std::string> paths;
  for (const CLI::App* command : all_commands(app)) {
    if (command != &app) paths.push_back("'" + path_of(*command) + "'");
  }
  return paths;
}

// The last of a command's arguments, which takes all words that no other takes; null for none.
const CLI::Option* argument_of(const CLI::App& command) {
  const CLI::Option* last = nullptr;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) last = option;
  }
  return last;
}

// Options that are no positional arguments.
std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  return command.get_options([](const CLI::Option* each) { return !each->get_positional(); });
}

// Completion of a value: bash's word for it, fish's options and zsh's action; choices are put into
// both.
struct ShellActions {
  const char* bash;
  const char* fish;
  const char* zsh;
};
const ShellActions& shell_actions(Values values) {
  static constexpr ShellActions kActions[] = {
      {"none", "", " "},
      {"none", " -x", " "},
      {"none", "", ""},
      {"gpus", " -x -a '(__vqgen_named gpus)'", " _vqgen_named gpus"},  // zsh takes it unchanged
      {"formats", " -x -a '(__vqgen_named formats)'", " _vqgen_named formats"},
      {"sweeps", " -x -a '(__vqgen_named sweeps)'", " _vqgen_named sweeps"},
      {"json", " -x -a '(__fish_complete_suffix .json)'", "_files -g \"*.json\""},
      {"files", " -r -F", "_files"}};
  return kActions[static_cast<std::size_t>(values)];
}

// Holds: paths; cases of options that take a value; cases of commands.
constexpr const char* kBashScript =
    R"bash(# bash completion of vqgen; printed by: vqgen completion bash
_vqgen() {{
  local tool=${{COMP_WORDS[0]}} cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
  local path='' word words='' values=none
  if [[ $cur == '=' ]]; then cur=''; fi  # --gpu=h is three words
  if [[ $prev == '=' ]]; then prev=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$path $word" in
      {}) path+=" $word" ;;
    esac
  done
  case "$path $prev" in
{}    *)
      case "$path" in
{}      esac
      ;;
  esac
  case "$values" in
    gpus | formats | sweeps) words+=" $("$tool" list "$values" 2>/dev/null | sed 's/ .*//')" ;;
  esac
  mapfile -t COMPREPLY < <(
    compgen -W "$words" -- "$cur"
    case "$values" in
      none) ;;
      files) compgen -f -- "$cur" ;;
      *)
        compgen -f -X '!*.json' -- "$cur"
        compgen -d -- "$cur"
        ;;
    esac
  )
}}
complete -o filenames -F _vqgen vqgen
)bash";

template <class Words>
std::string among(const Words& words) {
  return fmt::format("words='{}'", fmt::join(words, " "));
}

std::string bash_action(const CLI::Option& option) {
  if (values_of(option) == Values::choices) return among(choices_of(option));
  return fmt::format("values={}", shell_actions(values_of(option)).bash);
}

// Positional values that may follow; options are offered once one was begun.
std::string others_of(const CLI::App& command) {
  std::vector<std::string> below;
  for (const CLI::App* each : shown_subcommands(command)) below.push_back(each->get_name());
  if (!below.empty()) return among(below);
  const CLI::Option* const argument = argument_of(command);
  return argument == nullptr ? ":" : bash_action(*argument);
}

std::string bash_completion(const CLI::App& app) {
  std::map<std::string, std::vector<std::string>> by_action;  // options that take a value
  std::string commands;
  for (const CLI::App* command : all_commands(app)) {
    const std::string path = path_of(*command);
    std::vector<std::string> words;
    for (const CLI::Option* option : options_of(*command)) {
      for (const std::string& name : names_of(*option)) {
        words.push_back(name);
        if (values_of(*option) == Values::none) continue;
        by_action[bash_action(*option)].push_back(fmt::format("'{} {}'", path, name));
      }
    }
    commands += fmt::format("        '{}') if [[ $cur == -* ]]; then {}; else {}; fi ;;\n", path,
                            among(words), others_of(*command));
  }
  std::string values;
  for (const auto& [action, options] : by_action) {
    values += fmt::format("    {}) {} ;;\n", fmt::join(options, " | "), action);
  }
  return fmt::format(kBashScript, fmt::join(quoted_paths(app), " | "), values, commands);
}

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
  const Values values = values_of(option);
  if (values != Values::choices) return shell_actions(values).fish;
  return fmt::format(" -x -a '{}'", fmt::join(choices_of(option), " "));
}

std::string fish_description(const std::string& description) {
  return " -d " + quoted(first_line(description), {{'\'', "\\'"}, {'\\', "\\\\"}});
}

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
  const Values values = values_of(option);
  if (values != Values::choices) return shell_actions(values).zsh;
  return fmt::format("({})", fmt::join(choices_of(option), " "));
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

}  // namespace

void add_completion(CLI::App& app, Output&) {
  auto* command = app.add_subcommand("completion", "Print the completion script of a shell");
  command->group("");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->callback([&app, shell] {
    const std::string script = *shell == "bash"  ? bash_completion(app)
                               : *shell == "zsh" ? zsh_completion(app)
                                                 : fish_completion(app);
    std::fputs(script.c_str(), stdout);
  });
}

}  // namespace vqgen::cli
