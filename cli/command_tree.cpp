#include "cli/command_tree.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "core/former_names.h"
#include "core/suggest.h"

namespace vqgen::cli {
namespace {

// Value kinds by the name of an option or argument, which means the same in all subcommands. Other
// strings are files.
Values named_values(const std::string& name) {
  static const std::map<Values, std::set<std::string>> names{
      {Values::gpus, {"gpu"}},
      {Values::formats, {"format", "key-format", "split-by", "value-format"}},
      {Values::sweeps, {"work"}},
      {Values::json_files, {"config", "measured", "plans"}},
      {Values::text,
       {"keys", "values", "queries", "weights", "inputs", "exclude", "layout", "operand", "budget",
        "shard", "device", "entries", "lengths", "max-bytes"}}};
  for (const auto& [values, each] : names) {
    if (each.contains(name)) return values;
  }
  return Values::files;
}

std::string name_without_dashes(const CLI::Option& option) {
  return option.get_lnames().empty() ? option.get_single_name() : option.get_lnames().front();
}

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

std::string unknown_subcommand(const CLI::App& command, const std::string& name,
                               const std::vector<std::string>& known) {
  std::string meant = did_you_mean(name, known);
  for (const CLI::App* each : all_commands(command)) {
    if (each->get_parent() != &command && each->get_name() == name) {
      meant = fmt::format("; it is {}", full_name(*each));
    }
  }
  return fmt::format("unknown subcommand '{}'; see {} --help{}", name, full_name(command), meant);
}

}  // namespace

std::vector<const CLI::App*> shown_subcommands(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); });
}

std::vector<const CLI::App*> all_commands(const CLI::App& command) {
  std::vector<const CLI::App*> all{&command};
  for (const CLI::App* each : shown_subcommands(command)) {
    const std::vector<const CLI::App*> below = all_commands(*each);
    all.insert(all.end(), below.begin(), below.end());
  }
  return all;
}

const CLI::App& subcommand_of(const CLI::App& command, const std::string& name) {
  std::vector<std::string> known;
  for (const CLI::App* each : shown_subcommands(command)) {
    if (each->get_name() == name) return *each;
    known.push_back(each->get_name());
  }
  throw Error(ErrorKind::bad_input, unknown_subcommand(command, name, known));
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : full_name(*parent) + " ") + command.get_name();
}

std::string path_of(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? "" : path_of(*parent) + " " + command.get_name();
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

// CLI11 has them in the text of the option's type alone: "TEXT:{host,cuda}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

Values values_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return Values::none;
  if (!choices_of(option).empty()) return Values::choices;
  if (!option.get_type_name().starts_with("TEXT")) return Values::text;  // a number
  return named_values(name_without_dashes(option));
}

std::string placeholder_of(const CLI::Option& option) {
  static constexpr const char* kPlaceholders[] = {"",       "TEXT", "",     "GPU",
                                                  "FORMAT", "WORK", "FILE", "FILE"};
  const Values values = values_of(option);
  if (values == Values::choices) return fmt::format("{}", fmt::join(choices_of(option), "|"));
  const bool number = values == Values::text && !option.get_type_name().starts_with("TEXT");
  return number ? "NUMBER" : kPlaceholders[static_cast<std::size_t>(values)];
}

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
      return unknown_subcommand(command, *word, known);
    }
  }
  // An unknown option also causes that a required one is missing or its value is one too many.
  const auto option = std::find_if(unknown.begin(), unknown.end(), is_option);
  if (option == unknown.end()) return error.what() + help;
  const std::string name = option->substr(0, option->find('='));
  if (has(name)) {
    return fmt::format("option '{}' belongs behind the subcommand{}", name, help);
  }
  std::string meant = did_you_mean(name, options);
  for (const CLI::App* each : all_commands(app)) {
    if (!meant.empty()) break;  // a former name may be an option of another subcommand now
    const std::vector<std::string> others = option_names(*each);
    const std::string* const present = present_name(name, others);
    if (present != nullptr) meant = fmt::format("; it is '{}' of {}", *present, full_name(*each));
  }
  return fmt::format("unknown option '{}'{}{}", name, help, meant);
}

}  // namespace vqgen::cli
