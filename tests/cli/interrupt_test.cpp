// Signals and full files: the tool ends as the caller expects and leaves nothing. signal_storm.py
// sends signals at random moments.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "core/files/files.h"
#include "tests/cli/tiny_bundle.h"

namespace vqgen {
namespace {

const std::string kProjection = example("tinycode-projection");

// Waits until the condition is true, for a minute at most.
template <class Condition>
bool comes_true(Condition&& condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// True if there is no such process, or only its exit status.
bool is_gone(const std::string& pid) {
  try {
    return read_text("/proc/" + pid + "/stat").find(") Z ") != std::string::npos;
  } catch (const Error&) {
    return true;
  }
}

// `vqgen run` on the host with a compiler that hangs and has children and files.
class Interrupted : public testing::Test {
 protected:
  void SetUp() override {
    compiler_ = folder_.file("compiler",
                             "#!/bin/sh\n[ \"$1\" = --version ] && echo hangs 1.0 && exit\n"
                             "touch $TMPDIR/own-file\nsleep 1000 & echo $! > " +
                                 folder_.path("inner") + ".new\nmv " + folder_.path("inner") +
                                 ".new " + folder_.path("inner") + "\nwait\n");
    std::filesystem::permissions(compiler_, std::filesystem::perms::owner_all);
    std::filesystem::create_directories(folder_.path("tmp"));
    config_ = folder_.file("config.json", tiny_gemv().dump());
  }
  // Starts the tool through the shell, which can be told to ignore signals.
  pid_t start(const std::string& before = "") const {
    const std::string script =
        before + "exec env TMPDIR=" + folder_.path("tmp") + " VQGEN_CXX=" + compiler_ +
        " VQGEN_CACHE_DIR=" + folder_.path("cache") + " " VQGEN_TOOL " run " + config_ +
        " --backend host > " + folder_.path("out") + " 2>&1";
    const char* const arguments[] = {"sh", "-c", script.c_str(), nullptr};
    posix_spawnattr_t attributes;  // a shell's background jobs ignore SIGINT, and so may this one
    posix_spawnattr_init(&attributes);
    sigset_t defaults;
    sigemptyset(&defaults);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&defaults, signal);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    pid_t child = 0;
    posix_spawnp(&child, "sh", nullptr, &attributes, const_cast<char* const*>(arguments), environ);
    posix_spawnattr_destroy(&attributes);
    return child;
  }
  bool compiles() const {
    return comes_true([&] { return std::filesystem::exists(folder_.path("inner")); });
  }
  // The signal ended it silently, and all that it made is gone.
  void expect_end(pid_t child, int signal) const {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    EXPECT_EQ(read_text(folder_.path("out")), "");
    std::string inner = read_text(folder_.path("inner"));
    inner.pop_back();
    EXPECT_TRUE(comes_true([&] { return is_gone(inner); })) << "a child's child lives";
    for (const std::string& name : folder_.names()) {
      EXPECT_TRUE(name == "compiler" || name == "config.json" || name == "inner" || name == "out")
          << name;
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path("tmp")));
  }

  Folder folder_;
  std::string compiler_;
  std::string config_;
};

TEST_F(Interrupted, EndsByEachSignalWithAllThatItMade) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    SCOPED_TRACE(signal);
    const pid_t child = start();
    ASSERT_TRUE(compiles());
    ::kill(child, signal);
    expect_end(child, signal);
    std::filesystem::remove(folder_.path("inner"));
    std::filesystem::remove_all(folder_.path("cache"));
  }
}

// nohup ignores SIGHUP before it starts a program.
TEST_F(Interrupted, WhatTheCallerIgnoresStaysIgnored) {
  const pid_t child = start("trap '' HUP; ");
  ASSERT_TRUE(compiles());
  ::kill(child, SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(::waitpid(child, nullptr, WNOHANG), 0);
  ::kill(child, SIGTERM);
  expect_end(child, SIGTERM);
}

TEST(FullFiles, PastALimitAreNamedAndLeaveNothing) {
  const Folder folder;
  const std::string out = folder.path("kernel.cu");
  const Outcome outcome = run_program(
      "bash",
      {"-c", "ulimit -f 4; exec \"$0\" export \"$1\" --out \"$2\"", VQGEN_TOOL, kProjection, out},
      {{"XDG_DATA_HOME", folder.path("")}});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find(out + ": cannot write: File too large"), std::string::npos)
      << outcome.err;
  EXPECT_EQ(folder.names(), std::vector<std::string>{});
}

// Nobody reads what the tool says: it ends silently by SIGPIPE, as other tools do.
TEST(ClosedPipe, EndsTheTool) {
  const Folder folder;
  const Outcome outcome = run_program(
      "bash", {"-c", "trap - PIPE; \"$0\" doctor | true; echo ${PIPESTATUS[0]}", VQGEN_TOOL},
      {{"TMPDIR", folder.path("")}});
  EXPECT_TRUE(outcome.out == "141\n" || outcome.out == "0\n") << outcome.out;  // 0: it was faster
  EXPECT_EQ(outcome.err, "");
}

}  // namespace
}  // namespace vqgen
