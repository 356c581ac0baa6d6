#include "tests/fuzz/guard.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>

namespace vqgen::test {
namespace {

// More time than any case takes on the slowest machine.
constexpr unsigned kEndlessSeconds = 300;

struct Progress {
  std::size_t at;
  std::array<char, 4096> what;
};

void* shared_zeros(std::size_t bytes) {
  void* const zeros =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (zeros == MAP_FAILED) throw std::bad_alloc();
  return zeros;
}

[[noreturn]] void run_all(std::size_t count, const std::function<std::string(std::size_t)>& run,
                          Progress& progress) {
  for (; progress.at < count; ++progress.at) {
    alarm(kEndlessSeconds);
    std::string what;
    try {
      what = run(progress.at);
    } catch (const std::exception& error) {
      what = fmt::format("an exception that is no vqgen::Error: {}", error.what());
    }
    what.copy(progress.what.data(), progress.what.size() - 1);
    if (!what.empty()) break;
  }
  _exit(0);
}

std::string ending(int status) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return "it did not end";
  if (WIFSIGNALED(status)) return fmt::format("it crashed: {}", strsignal(WTERMSIG(status)));
  return fmt::format("it ended the program with exit code {}", WEXITSTATUS(status));
}

}  // namespace

GuardedFailure run_guarded(std::size_t count, const std::function<std::string(std::size_t)>& run) {
  auto* const progress = static_cast<Progress*>(shared_zeros(sizeof(Progress)));
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) run_all(count, run, *progress);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  GuardedFailure failure{progress->at, progress->what.data()};
  if (failure.what.empty() && failure.number < count) failure.what = ending(status);
  munmap(progress, sizeof(Progress));
  return failure;
}

std::size_t* shared_counts(std::size_t count) {
  return static_cast<std::size_t*>(shared_zeros(count * sizeof(std::size_t)));
}

}  // namespace vqgen::test
