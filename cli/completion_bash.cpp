#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/completion_scripts.h"

namespace vqgen::cli {
namespace {

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
  return fmt::format("values={}", word_of(values_of(option)));
}

// What may follow but for options: they are offered where one was begun.
std::string others_of(const CLI::App& command) {
  std::vector<std::string> below;
  for (const CLI::App* each : shown_subcommands(command)) below.push_back(each->get_name());
  if (!below.empty()) return among(below);
  const CLI::Option* const argument = argument_of(command);
  return argument == nullptr ? ":" : bash_action(*argument);
}

}  // namespace

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

}  // namespace vqgen::cli
