#include "runtime/process/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <thread>

namespace vqgen {
namespace {

// A candidate for SIGKILL that takes this long to tidy up gets it.
constexpr std::chrono::milliseconds kTidying{500};

// What was ignored before this process began, as nohup does it, stays ignored; handlers go with the
// program anyway. So only those count that a program ignores for itself, or for all that it starts.
class Attributes {
 public:
  Attributes() {
    posix_spawnattr_init(&value);
    sigset_t none, defaults;
    sigemptyset(&none);
    sigfillset(&defaults);
    for (const int kept : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) sigdelset(&defaults, kept);
    posix_spawnattr_setsigmask(&value, &none);
    posix_spawnattr_setsigdefault(&value, &defaults);
    posix_spawnattr_setpgroup(&value, 0);
    posix_spawnattr_setflags(
        &value, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  ~Attributes() { posix_spawnattr_destroy(&value); }
  posix_spawnattr_t value;
};

class Actions {
 public:
  Actions(const ChildSetup& setup, const ChildFiles& files) {
    posix_spawn_file_actions_init(&value);
    if (!setup.folder.empty()) {
      posix_spawn_file_actions_addchdir_np(&value, setup.folder.c_str());
    }
    posix_spawn_file_actions_adddup2(&value, files.in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&value, files.out, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&value, files.errors, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&value, STDERR_FILENO + 1);
  }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;
  ~Actions() { posix_spawn_file_actions_destroy(&value); }
  posix_spawn_file_actions_t value;
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  return out;
}

// This process's environment, but for what `changes` say.
std::vector<char*> environment_with(const std::vector<std::string>& changes) {
  std::vector<char*> out = pointers(changes);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view name(*entry, std::strcspn(*entry, "="));
    const bool changed = std::any_of(changes.begin(), changes.end(), [&](const auto& change) {
      return change.starts_with(name) && change[name.size()] == '=';
    });
    if (!changed) out.push_back(*entry);
  }
  return out;
}

}  // namespace

OwnedFile::~OwnedFile() {
  if (file_ >= 0) ::close(file_);
}

OwnedFile above_standard(OwnedFile file) {
  if (file.get() < 0 || file.get() > STDERR_FILENO) return file;
  return OwnedFile(::fcntl(file.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

Child::Child(const ChildSetup& setup, const ChildFiles& files) : farewell_(setup.farewell) {
  const std::string program = setup.command.empty() ? "" : setup.command.front();
  std::vector<char*> arguments = pointers(setup.command);
  std::vector<char*> environment = environment_with(setup.environment);
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  const Attributes attributes;
  const Actions actions(setup, files);
  int failed = ENOENT;
  if (!program.empty()) {
    Leftovers leftovers;
    failed = posix_spawnp(&pid_, program.c_str(), &actions.value, &attributes.value,
                          arguments.data(), environment.data());
    if (failed == 0) leftovers.add_child(pid_, farewell_);
  }
  if (failed == 0) return;
  pid_ = -1;
  throw StartError(failed, fmt::format("cannot start '{}': {}; see that it is there and can be "
                                       "run, and that memory and processes are to be had",
                                       program, std::strerror(failed)));
}

Child::~Child() { end(); }

// Reaped by end() alone: until then its number, and its group's, are no other's.
bool Child::ended(Time deadline) const {
  std::chrono::milliseconds pause{1};
  for (;;) {
    siginfo_t info{};
    const int failed = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT | WNOHANG);
    if (failed != 0 || info.si_pid == pid_) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds{8});
  }
}

std::optional<int> Child::end() {
  if (pid_ < 0) return std::nullopt;
  const auto now = std::chrono::steady_clock::now();
  const bool alone = ended(now);
  if (!alone && farewell_ == Farewell::terminate && ::kill(pid_, SIGTERM) == 0) {
    ended(now + kTidying);
  }
  siginfo_t unused{};
  const auto id = static_cast<id_t>(pid_);
  const bool reaped = ::waitid(P_PID, id, &unused, WEXITED | WNOWAIT | WNOHANG) != 0;
  if (!reaped) ::kill(-pid_, SIGKILL);
  ended(Time::max());
  Leftovers leftovers;
  int status = 0;
  const bool known = ::waitpid(pid_, &status, 0) == pid_;
  leftovers.forget_child(pid_);
  pid_ = -1;
  return alone && known ? std::optional(status) : std::nullopt;
}

std::string describe_status(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("ended with status {}", WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  const char* const name = ::sigdescr_np(signal);
  return fmt::format("ended by signal {} ({})", signal, name == nullptr ? "unknown" : name);
}

}  // namespace vqgen
