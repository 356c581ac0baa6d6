#include "cli/usage.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/command_tree.h"
#include "core/suggest.h"

namespace vqgen::cli {
namespace {

// The subcommand that the arguments came as far as.
const CLI::App& reached(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : names_of(*option)) names.push_back(name);
  }
  return names;
}

}  // namespace

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = reached(app);
  const std::string help = fmt::format("; see {} --help", full_name(command));
  const std::vector<std::string> options = option_names(command);
  const auto has = [&](const std::string& name) {
    return std::find(options.begin(), options.end(), name) != options.end();
  };
  std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  if (!has("--json")) std::erase(unknown, "--json");  // it is heard everywhere
  const auto is_option = [](const std::string& text) { return text.starts_with('-'); };
  // CLI11 calls a misspelt subcommand a missing one.
  if (command.get_require_subcommand_min() > 0) {
    const auto word = std::find_if_not(unknown.begin(), unknown.end(), is_option);
    if (word != unknown.end()) {
      std::vector<std::string> known;
      for (const CLI::App* each : shown_subcommands(command)) known.push_back(each->get_name());
      return fmt::format("unknown subcommand '{}'{}{}", *word, help, did_you_mean(*word, known));
    }
  }
  // And of an option that nothing has, that a required one is missing or its value is one too many.
  const auto option = std::find_if(unknown.begin(), unknown.end(), is_option);
  if (option == unknown.end()) return error.what() + help;
  const std::string name = option->substr(0, option->find('='));
  if (has(name)) {
    return fmt::format("option '{}' belongs behind the subcommand{}", name, help);
  }
  return fmt::format("unknown option '{}'{}{}", name, help, did_you_mean(name, options));
}

}  // namespace vqgen::cli
