// An interrupted process leaves nothing that it has named.
#include "core/json/leftovers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "core/files/files.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

// The exit status of a child of this process that runs `body`, which should not return.
template <class Body>
int status_of(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(99);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

[[noreturn]] void interrupt() {
  end_leftovers();
  ::_exit(7);
}

TEST(Leftovers, FilesAndFoldersThatAreNamedGo) {
  const TempFolder folder;
  const std::filesystem::path file = folder.path() / "file", tree = folder.path() / "tree";
  EXPECT_EQ(status_of([&] {
              {
                Leftovers leftovers;
                leftovers.add(file);
                leftovers.add(tree);
                leftovers.add(folder.path() / "never-made");
                leftovers.add(folder.path() / "kept");
              }
              publish_text(file, "x");
              std::filesystem::create_directories(tree / "deep");
              publish_text(tree / "deep" / "file", "x");
              publish_text(folder.path() / "kept", "x");
              Leftovers().forget(folder.path() / "kept");
              interrupt();
            }),
            7);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"kept"});
}

// A thread writes files over and over; an interruption never leaves a half-written one.
TEST(Leftovers, AWriterThatIsInterruptedLeavesAllOrNothing) {
  const TempFolder folder;
  const std::vector<std::byte> bytes(100'000, std::byte{1});
  const std::vector<FileContent> files{{folder.path() / "a", bytes}, {folder.path() / "b", bytes}};
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(status_of([&] {
                std::thread([&] {
                  for (;;) {
                    publish_files(files);
                    std::filesystem::remove(files[0].path);
                    std::filesystem::remove(files[1].path);
                  }
                }).detach();
                std::this_thread::sleep_for(std::chrono::microseconds(1000 + 700 * i));
                interrupt();
              }),
              7);
    for (const std::string& name : folder.names()) {
      EXPECT_TRUE(name == "a" || name == "b") << name;
      EXPECT_EQ(std::filesystem::file_size(folder.path() / name), bytes.size());
      std::filesystem::remove(folder.path() / name);
    }
  }
}

TEST(Leftovers, WhoeverMakesOneAfterwardsStops) {
  const TempFolder folder;
  EXPECT_EQ(status_of([&] {
              end_leftovers();
              std::thread late([&] { publish_text(folder.path() / "late", "x"); });
              std::this_thread::sleep_for(std::chrono::milliseconds(50));
              ::_exit(7);
            }),
            7);
  EXPECT_EQ(folder.names(), std::vector<std::string>{});
}

// A process that listens to SIGTERM cleans up before it ends; one that does not is ended all the
// same.
TEST(Leftovers, ChildrenEndAsTheyAreAskedTo) {
  const TempFolder folder;
  const auto child = [&](Farewell farewell, const char* on_term) {
    int ready[2];
    if (::pipe(ready) != 0) ::_exit(98);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setpgid(0, 0);
      ::chdir(folder.path().c_str());
      ::dup2(ready[1], 1);
      const std::string script =
          std::string("trap '") + on_term + "' TERM; echo; while :; do sleep 0.01; done";
      ::execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
    }
    char byte = 0;
    if (::read(ready[0], &byte, 1) != 1) ::_exit(97);
    Leftovers().add_child(pid, farewell);
    return pid;
  };
  EXPECT_EQ(status_of([&] {
              const pid_t tidy = child(Farewell::terminate, "touch tidied; exit 0");
              const pid_t deaf = child(Farewell::terminate, "");
              const pid_t plain = child(Farewell::kill, "touch asked; exit 0");
              end_leftovers();
              int status[3];
              for (const auto& [pid, i] : {std::pair{tidy, 0}, {deaf, 1}, {plain, 2}}) {
                if (::waitpid(pid, &status[i], WNOHANG) != pid) ::_exit(96);
              }
              const bool killed = WIFSIGNALED(status[1]) && WIFSIGNALED(status[2]);
              ::_exit(WIFEXITED(status[0]) && killed ? 7 : 95);
            }),
            7);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"tidied"});
}

// The limit of a shell's `ulimit -f`, with its signal ignored as the tool does.
TEST(Leftovers, AFileThatMayNotGrowIsAnErrorThatNamesItAndLeavesNothing) {
  const TempFolder folder;
  EXPECT_EQ(status_of([&] {
              ::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{1000, 1000};
              ::setrlimit(RLIMIT_FSIZE, &limit);
              try {
                publish_text(folder.path() / "big", std::string(2000, 'x'));
              } catch (const FileError& error) {
                const std::string what = error.what();
                ::_exit(error.code() == EFBIG && what.find("/big") != what.npos ? 7 : 98);
              }
            }),
            7);
  EXPECT_EQ(folder.names(), std::vector<std::string>{});
}

}  // namespace
}  // namespace vqgen
