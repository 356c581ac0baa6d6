// The help of every command: options in groups, short texts, and examples that the parser takes.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "cli/command_tree.h"
#include "cli/commands.h"

namespace vqgen::cli {
namespace {

const std::filesystem::path kSource = VQGEN_SOURCE_DIR;

// The words of a command line, without the quotes of a shell.
std::vector<std::string> words_of(std::string line) {
  std::erase(line, '\'');
  return CLI::detail::split(line, ' ');
}

// Ends a parse once all of it was accepted, before a command runs.
struct Accepted {};
class ParsedOnly final : public CLI::App {
  void pre_callback() override { throw Accepted(); }
};

// Commands that parse and do nothing.
class Commands {
 public:
  Commands() { declare_commands(app_, output_); }
  std::vector<const CLI::App*> all() const { return all_commands(app_); }
  // Throws CLI::ParseError as the tool does; gives the command that was reached.
  const CLI::App& parse(const std::string& line) {
    std::vector<std::string> words = words_of(line);
    words.erase(words.begin());
    std::reverse(words.begin(), words.end());
    try {
      app_.parse(words);
    } catch (const Accepted&) {
    }
    const CLI::App* at = &app_;
    while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
    return *at;
  }

 private:
  Output output_;
  ParsedOnly app_;
};

TEST(Help, EveryCommandHasTwoExamplesThatParse) {
  std::size_t judged = 0;
  const Commands commands;
  for (const CLI::App* command : commands.all()) {
    SCOPED_TRACE(full_name(*command));
    ++judged;
    const std::vector<std::string> examples = examples_of(*command);
    ASSERT_EQ(examples.size(), 2u);
    EXPECT_NE(examples[0], examples[1]);
    for (const std::string& example : examples) {
      EXPECT_NE(command->help().find("\n  " + example + "\n"), std::string::npos);
      Commands fresh;
      try {
        const std::string reached = full_name(fresh.parse(example));
        EXPECT_TRUE((reached + " ").starts_with(full_name(*command) + " ")) << reached;
      } catch (const CLI::ParseError& error) {
        ADD_FAILURE() << example << ": " << error.what();
      }
    }
  }
  EXPECT_GT(judged, 25u);
}

TEST(Help, ExamplesThatDoNotParseAreFound) {
  for (const char* wrong :
       {"vqgen explain c.json --gup h200", "vqgen complie c.json", "vqgen compile",
        "vqgen tune c.json --rounds 0", "vqgen list kernels"}) {
    EXPECT_THROW(Commands().parse(wrong), CLI::ParseError) << wrong;
  }
}

// Files of the checkout are there; what is below out/ another example makes.
TEST(Help, ExamplesNameFilesThatAreThere) {
  std::set<std::string> made{"out/space.json",
                             "out/likely.json"};  // redirected stdout of dev space
  std::vector<std::string> read;
  const Commands commands;
  for (const CLI::App* command : commands.all()) {
    for (const std::string& example : examples_of(*command)) {
      const std::vector<std::string> words = words_of(example);
      for (std::size_t i = 1; i < words.size(); ++i) {
        if (words[i].find('/') == std::string::npos) continue;
        const bool writes = words[i - 1] == "--out" || words[i - 1] == "--to" ||
                            (words[i - 1] == "pack" && words[i - 2] == "cache");
        if (writes) {
          made.insert(words[i]);
        } else {
          read.push_back(words[i]);
        }
      }
    }
  }
  ASSERT_GT(read.size(), 20u);
  for (const std::string& path : read) {
    EXPECT_TRUE(made.contains(path) || std::filesystem::exists(kSource / path)) << path;
  }
}

TEST(Help, OptionsAreInGroups) {
  const std::vector<std::string>& groups = option_groups();
  std::set<std::string> used;
  const Commands commands;
  for (const CLI::App* command : commands.all()) {
    const std::string help = command->help();
    for (const CLI::Option* option : command->get_options()) {
      if (option->get_positional()) continue;
      SCOPED_TRACE(full_name(*command) + " " + option->get_name());
      const std::string& group = option->get_group();
      EXPECT_TRUE(std::find(groups.begin(), groups.end(), group) != groups.end()) << group;
      used.insert(group);
      EXPECT_LT(help.find("\n" + group + ":\n"), help.find("\n  " + names_of(*option).front()));
    }
  }
  EXPECT_EQ(used.size(), groups.size());
}

// docs/reference has the details.
TEST(Help, TextsAreShort) {
  const Commands commands;
  for (const CLI::App* command : commands.all()) {
    if (command->get_parent() != nullptr) {
      EXPECT_LE(command->get_description().size(), 90u) << full_name(*command);
    }
    for (const CLI::Option* option : command->get_options()) {
      EXPECT_LE(option->get_description().size(), 90u) << full_name(*command) << option->get_name();
    }
  }
}

}  // namespace
}  // namespace vqgen::cli
