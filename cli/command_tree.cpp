#include "cli/command_tree.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace vqgen::cli {
namespace {

// By the name of an option or argument, which means the same in all subcommands. Strings that are
// not here are files.
const std::map<std::string, Values>& values_by_name() {
  static const std::map<std::string, Values> values{{"gpu", Values::gpus},
                                                    {"format", Values::formats},
                                                    {"key-format", Values::formats},
                                                    {"value-format", Values::formats},
                                                    {"work", Values::sweeps},
                                                    {"config", Values::json_files},
                                                    {"measured", Values::json_files},
                                                    {"plans", Values::json_files},
                                                    {"keys", Values::text},
                                                    {"values", Values::text},
                                                    {"queries", Values::text},
                                                    {"weights", Values::text},
                                                    {"inputs", Values::text},
                                                    {"layout", Values::text},
                                                    {"operand", Values::text},
                                                    {"budget", Values::text},
                                                    {"shard", Values::text}};
  return values;
}

std::string name_without_dashes(const CLI::Option& option) {
  return option.get_lnames().empty() ? option.get_single_name() : option.get_lnames().front();
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
  const auto known = values_by_name().find(name_without_dashes(option));
  return known == values_by_name().end() ? Values::files : known->second;
}

std::string placeholder_of(const CLI::Option& option) {
  switch (values_of(option)) {
    case Values::none:
      return "";
    case Values::choices:
      return fmt::format("{}", fmt::join(choices_of(option), "|"));
    case Values::gpus:
      return "GPU";
    case Values::formats:
      return "FORMAT";
    case Values::sweeps:
      return "WORK";
    case Values::json_files:
    case Values::files:
      return "FILE";
    case Values::text:
      break;
  }
  return option.get_type_name().starts_with("TEXT") ? "TEXT" : "NUMBER";
}

}  // namespace vqgen::cli
