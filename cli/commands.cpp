#include "cli/commands.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "cli/command_tree.h"

namespace vqgen::cli {
namespace {

// A subcommand, grouped as in `vqgen --help`, in its order.
struct Command {
  const char* group;
  AddCommand* add;
};
constexpr Command kCommands[] = {{"Use", add_quantize},
                                 {"Use", add_import},
                                 {"Use", add_inspect},
                                 {"Use", add_explain},
                                 {"Use", add_compile},
                                 {"Use", add_run},
                                 {"Use", add_export},
                                 {"Tune", add_measure},
                                 {"Tune", add_tune},
                                 {"Tune", add_db},
                                 {"Tune", add_cache},
                                 {"Change bundles", add_count_accesses},
                                 {"Change bundles", add_reorder},
                                 {"Change bundles", add_repack},
                                 {"Develop kernels", add_dev},
                                 {"Look up", add_help},
                                 {"Look up", add_list},
                                 {"Look up", add_doctor},
                                 {"Look up", add_version},
                                 {"", add_completion},
                                 {"", add_man},
                                 {"", add_tune_worker}};

// Options by group; a name has one group in all subcommands.
struct OptionGroup {
  std::string name;
  std::set<std::string> options;
};
const std::vector<OptionGroup>& groups() {
  static const std::vector<OptionGroup> all{
      {"Tensors",
       {"input", "calibration", "keys", "values", "queries", "weights", "inputs", "exclude",
        "config", "like"}},
      {"Formats",
       {"key-format", "value-format", "format", "split-by", "no-key-gain", "dtype", "any-format",
        "layout", "entries", "operand", "reorder", "dense"}},
      {"Plan",
       {"gpu", "planner", "access-counts", "placement", "compile", "plans", "sample", "top",
        "codebooks-in", "papers"}},
      {"Data",
       {"data", "seed", "lengths", "active-experts", "code-distribution", "shared-codebooks",
        "parts", "context", "batch"}},
      {"Machine", {"backend", "device", "check", "warm-up", "interactive", "counters"}},
      {"Search",
       {"search", "budget", "rounds", "max-candidates", "shard", "replay", "journal", "resume"}},
      {"Cache", {"max-bytes", "max-age", "from", "to"}},
      {"Output", {"out", "keep-original", "json"}},
      {"Help", {"help", "version"}}};
  return all;
}

void group_options(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty()) continue;  // a positional argument
    for (const OptionGroup& group : groups()) {
      if (group.options.contains(option->get_lnames().front())) option->group(group.name);
    }
  }
  for (CLI::App* each : command.get_subcommands({})) group_options(*each);
}

// Help whose groups come in one order, with the values that an option takes for their types.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    std::string text = make_description(app) + make_usage(app, std::move(name));
    text += make_positionals(app);
    for (const std::string& group : option_groups()) {
      const auto options = app->get_options([&](const CLI::Option* each) {
        return each->get_group() == group && each->nonpositional();
      });
      if (!options.empty()) text += make_group(group, false, options);
    }
    return text + make_subcommands(app, mode) + '\n' + make_footer(app);
  }
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    return positional ? option->get_name(true)
                      : fmt::format("{}", fmt::join(names_of(*option), ","));
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string value = placeholder_of(*option);
    const bool many = option->get_items_expected_max() >= CLI::detail::expected_max_vector_size;
    return (value.empty() ? "" : " " + value) + (many ? " ..." : "");
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    if (!option->get_default_str().empty()) text += fmt::format(" [{}]", option->get_default_str());
    if (option->get_required()) text += " (required)";
    for (const CLI::Option* other : option->get_excludes()) {
      text += fmt::format(" (not with {})", other->get_name());
    }
    return text;
  }
};

}  // namespace

const std::vector<std::string>& option_groups() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const OptionGroup& each : groups()) all.push_back(each.name);
    return all;
  }();
  return names;
}

void declare_commands(CLI::App& app, Output& output) {
  app.name("vqgen");
  app.description(
      "vqgen generates fused vector-quantization kernels for LLM inference.\n"
      "Exit codes: 0 ok, 2 usage or bad input, 3 not feasible, 4 verification failed,\n"
      "5 device or compiler missing or failed.");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", "vqgen " VQGEN_VERSION);
  app.require_subcommand(1);
  for (const Command& each : kCommands) {
    each.add(app, output);
    app.get_subcommands({}).back()->group(each.group);
  }
  finish_options(app, output);
  group_options(app);
  add_examples(app, "vqgen explain examples/configs/tinycode-layer.json --gpu h200",
               "vqgen run examples/configs/tinycode-layer.json --backend host");
}

// Prints what --help prints.
void add_help(CLI::App& app, Output& output) {
  auto words = std::make_shared<std::vector<std::string>>();
  auto* help = app.add_subcommand("help", "Print the help of a command");
  add_examples(*help, "vqgen help compile", "vqgen help db merge");
  help->add_option("subcommand", *words, "The command's name, such as compile, or db merge");
  help->callback([&app, words, &output] {
    const CLI::App* at = &app;
    for (const std::string& word : *words) at = &subcommand_of(*at, word);
    const std::string text =
        at->get_formatter()->make_help(at, full_name(*at), CLI::AppFormatMode::Normal);
    output.line("{}", text);
    output.document["help"] = text;
  });
}

// Prints what --version prints.
void add_version(CLI::App& app, Output& output) {
  auto* version = app.add_subcommand("version", "Print the version");
  add_examples(*version, "vqgen version", "vqgen version --json");
  version->callback([&output] {
    output.line("vqgen {}", VQGEN_VERSION);
    output.document["version"] = VQGEN_VERSION;
  });
}

}  // namespace vqgen::cli
