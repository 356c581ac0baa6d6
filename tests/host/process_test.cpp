// Children of this process: what they inherit, and how they end.
#include "runtime/backend/host/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "core/files/files.h"
#include "runtime/process/child.h"
#include "tests/message_of.h"

namespace vqgen::host_test {
namespace {

using testing::HasSubstr;

std::string said(const std::string& script, host::RunOptions options = {}) {
  const host::ScratchFolder folder({});
  EXPECT_EQ(host::run_process({"sh", "-c", script}, folder.path(), "log", std::move(options)), 0);
  return read_text(folder.path() / "log");
}

TEST(Process, GetsItsFolderEnvironmentAndStatus) {
  const host::ScratchFolder folder({});
  const auto run = [&](const char* script) {
    return host::run_process({"sh", "-c", script}, folder.path(), "log", {.environment = {"A=b"}});
  };
  EXPECT_EQ(run("echo $A $LC_ALL; pwd; exit 3"), 3);
  EXPECT_EQ(read_text(folder.path() / "log"), "b C\n" + folder.path().string() + "\n");
  EXPECT_EQ(run("kill -SEGV $$"), 128 + SIGSEGV);
  EXPECT_EQ(host::run_process({"no-such-program"}, folder.path(), "log"), std::nullopt);
}

// A program such as a server may be set up in any way: its handlers, mask, ignored signals and
// files do not reach the child.
TEST(Process, GetsSignalsAndFilesAsAnyProgram) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR2);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const auto pipe_before = ::signal(SIGPIPE, SIG_IGN);
  const int open = ::open("/dev/null", O_RDONLY);  // and not O_CLOEXEC
  const std::string blocked_there = said("grep SigBlk /proc/self/status");
  const std::string ignored_there = said("sed -n 's/SigIgn:.//p' /proc/self/status");
  const std::string files = said("ls /proc/self/fd | grep -vx 3");  // 3 is that of ls itself
  ::close(open);
  ::signal(SIGPIPE, pipe_before);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(blocked_there, "SigBlk:\t0000000000000000\n");
  EXPECT_EQ(std::stoull(ignored_there, nullptr, 16) >> (SIGPIPE - 1) & 1, 0u) << ignored_there;
  EXPECT_EQ(files, "0\n1\n2\n");
}

TEST(Process, ThatTakesTooLongIsEndedWithWhatItStarted) {
  const host::ScratchFolder folder({});
  const std::string script = "sleep 1000 & echo $! > inner; wait";
  EXPECT_THAT(device_error([&] {
                host::run_process({"sh", "-c", script}, folder.path(), "log",
                                  {.longest = std::chrono::seconds(1)});
              }),
              testing::AllOf(HasSubstr("sh took more than 1 s"), HasSubstr("was ended")));
  const pid_t inner = std::stoi(read_text(folder.path() / "inner"));
  const std::string stat = "/proc/" + std::to_string(inner) + "/stat";
  for (int i = 0; i < 1000 && ::access(stat.c_str(), F_OK) == 0; ++i) {
    if (read_text(stat).find(") Z ") != std::string::npos) break;  // until somebody reaps it
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const bool gone = ::access(stat.c_str(), F_OK) != 0;
  EXPECT_TRUE(gone || read_text(stat).find(") Z ") != std::string::npos);
}

TEST(Process, ThatTidiesUpIsGivenTheTime) {
  const host::ScratchFolder folder({});
  {
    ChildTalk talk({.command = {"sh", "-c",
                                "trap 'touch tidied; exit' TERM; echo; "
                                "while :; do sleep 0.01; done"},
                    .folder = folder.path(),
                    .farewell = Farewell::terminate});
    std::string bytes;
    ASSERT_EQ(talk.receive(bytes, std::chrono::steady_clock::now() + std::chrono::seconds(60)),
              ChildTalk::Got::bytes);
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "tidied"));
}

// Programs that ignore SIGCHLD, or whose handler reaps all children, take the status away.
TEST(Process, WhoseStatusAnotherTookHasEnded) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  ChildTalk talk({.command = {"sh", "-c", "echo word"}});
  std::string bytes;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  EXPECT_EQ(talk.receive(bytes, until), ChildTalk::Got::bytes);
  EXPECT_EQ(bytes, "word\n");
  EXPECT_EQ(talk.receive(bytes, until), ChildTalk::Got::end);
  EXPECT_EQ(talk.last_words(), "ended");
  ::signal(SIGCHLD, before);
}

}  // namespace
}  // namespace vqgen::host_test
