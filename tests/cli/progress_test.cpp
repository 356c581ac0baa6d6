// The display of long work: its name and age on a terminal, nothing elsewhere.
#include <algorithm>

#include "tests/cli/terminal.h"
#include "tests/cli/tiny_bundle.h"

namespace vqgen {
namespace {

const std::string kErase = "\r\033[K";

// Its compiler takes longer than progress stays silent, however fast the machine is.
class Progress : public testing::Test {
 protected:
  void SetUp() override {
    if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
    config_ = folder_.file("config.json", tiny_gemv().dump());
  }

  Arguments command(const std::string& name) const { return {name, config_, "--backend", "host"}; }

  // Sets a slow compiler and an empty cache, so that there is something to compile.
  Variables with_compiler(const std::string& then) {
    const std::string slow = folder_.file(
        "slow", "#!/bin/sh\n[ \"$1\" = --version ] && exec c++ --version\nsleep 3\n" + then + "\n");
    std::filesystem::permissions(slow, std::filesystem::perms::owner_all);
    return {{"VQGEN_CXX", slow},
            {"VQGEN_CACHE_DIR", folder_.path("cache" + std::to_string(++caches_))}};
  }
  Variables slow() { return with_compiler("exec c++ \"$@\""); }

 private:
  Folder folder_;
  std::string config_;
  int caches_ = 0;
};

// One line is drawn over and gone at the end.
TEST_F(Progress, IsALineOnATerminal) {
  struct Case {
    const char* name;
    const char* step;
    int notes;  // lines above it
  };
  for (const auto& [name, step, notes] :
       {Case{"run", "planning and compiling", 0}, Case{"measure", "compiling and measuring", 1}}) {
    const Outcome outcome = vqgen_on_terminal(command(name), slow());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find(step), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("  2 s  "), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), notes) << outcome.err;
    const std::string drawn = outcome.err.substr(outcome.err.rfind('\n') + 1);
    EXPECT_TRUE(drawn.starts_with(kErase) && drawn.ends_with(kErase)) << outcome.err;
    EXPECT_NE(outcome.out, "");
  }
}

TEST_F(Progress, IsNotInPipesOrJson) {
  const Outcome piped = vqgen(command("run"), slow());
  expect_success(piped);
  EXPECT_EQ(piped.err, "");
  Arguments json = command("run");
  json.emplace_back("--json");
  const Outcome outcome = vqgen_on_terminal(json, slow());
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(document_of(outcome)["ok"], true);
}

TEST_F(Progress, LeavesErrorsALineOfTheirOwn) {
  const Outcome outcome = vqgen_on_terminal(command("run"), with_compiler("exit 1"));
  EXPECT_EQ(outcome.exit_code, 5) << outcome.err;
  EXPECT_NE(outcome.err.find(kErase + "vqgen: "), std::string::npos) << outcome.err;
}

// A step per line would fill logs.
TEST_F(TinyBundle, IsMadeWithoutAWordInAPipe) {
  EXPECT_EQ(vqgen(quantize_tiny_cache(tensors(), folder.path("bundle"))).err, "");
}

}  // namespace
}  // namespace vqgen
