// Shell completion and the manual page cover all that the tool declares, in the form that their
// readers need.
#include <algorithm>

#include "core/files/files.h"
#include "core/profiles.h"
#include "tests/cli/tool.h"

namespace vqgen {
namespace {

using Words = std::vector<std::string>;

bool installed(const std::string& program) {
  return run_program("sh", {"-c", "command -v " + program}).exit_code == 0;
}

std::string printed(const Arguments& arguments) {
  const Outcome outcome = vqgen(arguments);
  expect_success(outcome);
  EXPECT_EQ(outcome.err, "");
  return outcome.out;
}

class BashCompletion : public testing::Test {
 protected:
  void SetUp() override {
    if (!installed("bash")) GTEST_SKIP() << "no bash";
    script_ = folder.file("vqgen.bash", printed({"completion", "bash"}));
  }

  // What bash offers for the last of `words`, which follow the tool's name, in `folder`.
  Words offered(const Words& words) const {
    Arguments arguments{"-c",
                        "cd \"$1\"; source \"$2\"; shift 2; COMP_WORDS=(\"$@\"); "
                        "COMP_CWORD=$(($# - 1)); _vqgen; printf '%s\\n' \"${COMPREPLY[@]}\"",
                        "bash",
                        folder.path(""),
                        script_,
                        VQGEN_TOOL};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const Outcome outcome = run_program("bash", arguments);
    expect_success(outcome);
    EXPECT_EQ(outcome.err, "");
    Words all = lines_of(outcome.out);
    std::sort(all.begin(), all.end());
    all.erase(std::remove(all.begin(), all.end(), ""), all.end());
    return all;
  }

  Folder folder;

 private:
  std::string script_;
};

TEST_F(BashCompletion, OfSubcommands) {
  EXPECT_EQ(offered({"comp"}), Words{"compile"});
  EXPECT_EQ(offered({"cache", ""}),
            (Words{"clear", "explain", "gc", "ls", "pack", "unpack", "verify"}));
  EXPECT_EQ(offered({"tune-"}), Words{}) << "which is for programs";
}

TEST_F(BashCompletion, OfValues) {
  EXPECT_EQ(offered({"compile", "x.json", "--gpu", "a1"}), (Words{"a10", "a100"}));
  EXPECT_EQ(offered({"cache", "explain", "x.json", "--gpu", "=", "a1"}), (Words{"a10", "a100"}));
  EXPECT_EQ(offered({"quantize", "--key-format", "quip"}), (Words{"quip-2", "quip-4"}));
  EXPECT_EQ(offered({"run", "--backend", ""}), (Words{"cuda", "host"}));
  EXPECT_EQ(offered({"run", "--seed", ""}), Words{});
  EXPECT_EQ(offered({"list", "s"}), Words{"sweeps"});
}

TEST_F(BashCompletion, OfFiles) {
  folder.file("my config.json", "{}");
  folder.file("data.bin", "");
  EXPECT_EQ(offered({"compile", ""}), Words{"my config.json"});
  EXPECT_EQ(offered({"compile", "--gpu", "my"}), Words{"my config.json"});
  EXPECT_EQ(offered({"run", "x.json", "--data", "data"}), Words{"data.bin"});
  Words work = sweep_names();
  work.push_back("my config.json");
  std::sort(work.begin(), work.end());
  EXPECT_EQ(offered({"tune", ""}), work);
}

// Completion offers all that --help has, for every subcommand at every level.
TEST_F(BashCompletion, OffersEveryOption) {
  std::vector<Words> paths{{}};
  for (std::size_t i = 0; i < paths.size(); ++i) {
    Words path = paths[i];
    SCOPED_TRACE(testing::PrintToString(path));
    path.push_back("--help");
    const std::string help = printed(path);
    path.back() = "-";
    const Words options = offered(path);
    EXPECT_GE(options.size(), 2u);
    for (const std::string& option : options) {
      EXPECT_NE(help.find(option), std::string::npos) << option;
    }
    for (std::size_t at = help.find("\n  -"); at != std::string::npos;
         at = help.find("\n  -", at + 1)) {
      std::string names = help.substr(at + 3, help.find(' ', at + 3) - at - 3);
      std::replace(names.begin(), names.end(), ',', '\n');
      for (std::string name : lines_of(names)) {
        name = name.substr(0, name.find('{'));  // --restart{false}
        EXPECT_TRUE(std::find(options.begin(), options.end(), name) != options.end()) << name;
      }
    }
    if (help.find("SUBCOMMAND") == std::string::npos) continue;
    path.back() = "";
    for (const std::string& command : offered(path)) {
      path.back() = command;
      paths.push_back(path);
    }
  }
  EXPECT_GT(paths.size(), 25u);
}

TEST(Completion, ScriptsAreWellFormed) {
  const Folder folder;
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const std::string script = folder.file(shell, printed({"completion", shell}));
    EXPECT_NE(read_text(script).find("key-format"), std::string::npos);
    if (!installed(shell)) {
      std::printf("%s is not installed: its script's syntax is not checked\n", shell.c_str());
      continue;
    }
    const Outcome outcome = run_program(shell, {"-n", script});
    EXPECT_EQ(outcome.exit_code, 0) << shell << ": " << outcome.err;
    EXPECT_EQ(outcome.err, "");
  }
  const Outcome other = vqgen({"completion", "tcsh"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("tcsh not in {bash,zsh,fish}"), std::string::npos) << other.err;
}

TEST(Completion, FishOffersTheSame) {
  if (!installed("fish")) GTEST_SKIP() << "no fish";
  const Folder folder;
  const std::string script = folder.file("vqgen.fish", printed({"completion", "fish"}));
  const auto offered = [&](const std::string& line) {
    const Outcome outcome =
        run_program("fish", {"--no-config", "-c",
                             "source $argv[1]; complete -C $argv[2] | string replace -r '\\t.*' ''",
                             script, line});
    EXPECT_EQ(outcome.err, "");
    return lines_of(outcome.out);
  };
  EXPECT_EQ(offered("vqgen comp"), Words{"compile"});
  EXPECT_EQ(offered("vqgen compile --gp"), Words{"--gpu"});
  EXPECT_EQ(offered(std::string(VQGEN_TOOL) + " compile --gpu a1"), (Words{"a10", "a100"}));
}

TEST(ManualPage, HasEverySubcommandOptionAndVariable) {
  const std::string page = printed({"man"});
  for (const char* text :
       {".SS vqgen compile config\n", ".SS vqgen cache pack out\n", ".B \\-\\-gpu GPU\n",
        ".B \\-\\-backend host|cuda\n", ".SH EXIT STATUS\n", "3 not feasible"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(page.find("tune\\-worker"), std::string::npos);
  int variables = 0;
  for (const std::string& line :
       lines_of(read_text(VQGEN_SOURCE_DIR "/docs/reference/environment.md"))) {
    if (!line.starts_with("| `VQGEN_")) continue;
    const std::string name = line.substr(3, line.find('`', 3) - 3);
    EXPECT_NE(page.find(".B " + name + "\n"), std::string::npos) << name;
    ++variables;
  }
  EXPECT_GT(variables, 5);
}

TEST(ManualPage, IsFormattedWithoutWarnings) {
  if (!installed("groff")) GTEST_SKIP() << "no groff";
  const Folder folder;
  const std::string page = folder.file("vqgen.1", printed({"man"}));
  const Outcome outcome = run_program("groff", {"-Tutf8", "-man", "-ww", page});
  expect_success(outcome);
  EXPECT_EQ(outcome.err, "");
}

TEST(Install, BringsCompletionAndTheManualPage) {
  const Folder folder;
  expect_success(run_program("cmake", {"--install", VQGEN_BINARY_DIR, "--component", "Unspecified",
                                       "--prefix", folder.path("")}));
  const std::map<std::string, Arguments> files{
      {"share/bash-completion/completions/vqgen", {"completion", "bash"}},
      {"share/zsh/site-functions/_vqgen", {"completion", "zsh"}},
      {"share/fish/vendor_completions.d/vqgen.fish", {"completion", "fish"}},
      {"share/man/man1/vqgen.1", {"man"}}};
  for (const auto& [name, arguments] : files) {
    EXPECT_EQ(read_text(folder.path(name)), printed(arguments)) << name;
  }
}

}  // namespace
}  // namespace vqgen
