#include "core/json/leftovers.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

namespace vqgen {
namespace {

constexpr std::chrono::milliseconds kPatience{800};

// Names and the process that made them: a forked child must not remove its parent's.
struct Named {
  std::mutex mutex;
  std::map<std::filesystem::path, pid_t> paths;
  std::map<pid_t, std::pair<Farewell, pid_t>> children;
};

// Never destroyed: threads may outlive main().
Named& named() {
  static Named* const all = new Named;
  return *all;
}

// True if `done` came true before the patience was over.
template <class Done>
bool comes_true(const Done& done) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// True also if somebody else has reaped it.
bool has_ended(pid_t child) {
  siginfo_t info{};
  const auto id = static_cast<id_t>(child);
  return ::waitid(P_PID, id, &info, WEXITED | WNOWAIT | WNOHANG) != 0 || info.si_pid == child;
}

void end_children(const std::map<pid_t, Farewell>& children) {
  if (children.empty()) return;
  const auto all_ended = [&] {
    return std::all_of(children.begin(), children.end(),
                       [](const auto& child) { return has_ended(child.first); });
  };
  for (const auto& [child, farewell] : children) {
    farewell == Farewell::terminate ? ::kill(child, SIGTERM) : ::kill(-child, SIGKILL);
  }
  comes_true(all_ended);
  for (const auto& [child, farewell] : children) ::kill(-child, SIGKILL);
  comes_true(all_ended);
}

// A grandchild may still be writing there, until its own SIGKILL is delivered.
void remove_whole(const std::filesystem::path& path) {
  comes_true([&] {
    std::error_code code;
    std::filesystem::remove_all(path, code);
    return !code;
  });
}

// Returns whether there was any.
bool end_own() {
  const pid_t own = ::getpid();
  std::map<pid_t, Farewell> children;
  for (const auto& [child, named_by] : named().children) {
    if (named_by.second == own) children.emplace(child, named_by.first);
  }
  end_children(children);
  bool any = !children.empty();
  for (const auto& [path, process] : named().paths) {
    if (process != own) continue;
    any = true;
    remove_whole(path);
  }
  return any;
}

// Threads that nobody waits for, as Python's daemons, may be compiling as the process exits: what
// they have goes with it. A process that was forked may have got the mutex locked.
[[gnu::destructor]] void leave_nothing() {
  if (!comes_true([] { return named().mutex.try_lock(); })) return;
  if (!end_own()) named().mutex.unlock();
}

}  // namespace

Leftovers::Leftovers() : lock_(named().mutex) {}

void Leftovers::add(const std::filesystem::path& path) { named().paths[path] = ::getpid(); }

void Leftovers::forget(const std::filesystem::path& path) { named().paths.erase(path); }

void Leftovers::add_child(pid_t leader, Farewell farewell) {
  named().children[leader] = {farewell, ::getpid()};
}

void Leftovers::forget_child(pid_t leader) { named().children.erase(leader); }

void end_leftovers() {
  named().mutex.lock();  // for good
  end_own();
}

}  // namespace vqgen
