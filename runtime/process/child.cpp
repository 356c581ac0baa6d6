#include "runtime/process/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <thread>

namespace vqgen {
namespace {

// The time that a candidate for SIGKILL has to clean up.
constexpr std::chrono::milliseconds kTidying{500};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  return out;
}

// This process's environment with the given changes.
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

// Returns what posix_spawnp() returns: 0, or an errno. Signals that were ignored when this process
// began (nohup) stay ignored. Handlers do not survive exec, so only signals that this program
// ignores itself need a reset.
int spawn(const ChildSetup& setup, const ChildFiles& files, pid_t& pid) {
  std::vector<char*> arguments = pointers(setup.command);
  std::vector<char*> environment = environment_with(setup.environment);
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  sigset_t none, defaults;
  sigemptyset(&none);
  sigfillset(&defaults);
  for (const int kept : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) sigdelset(&defaults, kept);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (!setup.folder.empty()) {
    posix_spawn_file_actions_addchdir_np(&actions, setup.folder.c_str());
  }
  posix_spawn_file_actions_adddup2(&actions, files.in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, files.out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, files.errors, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  int failed = ENOENT;
  if (!setup.command.empty() && !setup.command.front().empty()) {
    Leftovers leftovers;
    failed = posix_spawnp(&pid, arguments.front(), &actions, &attributes, arguments.data(),
                          environment.data());
    if (failed == 0) leftovers.add_child(pid, setup.farewell);
  }
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return failed;
}

std::string program_of(const ChildSetup& setup) {
  return setup.command.empty() ? "" : setup.command.front();
}

constexpr std::size_t kErrorTailBytes = 2048;

// Reads the bytes that are there now; 0 at the end, -1 if there are none yet.
ssize_t read_some(int file, std::span<char> to) {
  ssize_t got = 0;
  do {
    got = ::read(file, to.data(), to.size());
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return 0;  // reset: closed
  return got;
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
  const int failed = spawn(setup, files, pid_);
  if (failed == 0) return;
  throw StartError(failed, fmt::format("cannot start '{}': {}; see that it is there and can be "
                                       "run, and that memory and processes are to be had",
                                       program_of(setup), std::strerror(failed)));
}

Child::~Child() { end(); }

// Only end() reaps it: until then no other process gets its number or its group's.
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

ChildTalk::ChildTalk(const ChildSetup& setup) {
  int talk[2] = {-1, -1};
  int errors[2] = {-1, -1};
  const bool opened = ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk) == 0 &&
                      ::pipe2(errors, O_CLOEXEC) == 0;
  const int code = errno;
  talk_ = above_standard(OwnedFile(talk[0]));
  errors_ = above_standard(OwnedFile(errors[0]));
  const OwnedFile child_talk = above_standard(OwnedFile(talk[1]));
  const OwnedFile child_errors = above_standard(OwnedFile(errors[1]));
  if (!opened) {
    throw StartError(code, fmt::format("cannot start '{}': no pipe to it: {}; close some files",
                                       program_of(setup), std::strerror(code)));
  }
  for (const OwnedFile* mine : {&talk_, &errors_}) ::fcntl(mine->get(), F_SETFL, O_NONBLOCK);
  child_.emplace(setup, ChildFiles{child_talk.get(), child_talk.get(), child_errors.get()});
}

// Waits until one of `events` is ready on the socket; collects errors meanwhile.
bool ChildTalk::wait(int events, Time deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    constexpr long long kMostWait = 3'600'000;
    const int timeout = static_cast<int>(std::clamp<long long>(left.count(), 0, kMostWait));
    pollfd files[2] = {{talk_.get(), static_cast<short>(events), 0}, {errors_.get(), POLLIN, 0}};
    const int count = ::poll(files, 2, timeout);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0 && files[1].revents != 0) take_errors();
    if (count > 0 && files[0].revents != 0) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

bool ChildTalk::take_errors() {
  std::array<char, 4096> bytes;
  const ssize_t got = read_some(errors_.get(), bytes);
  if (got == 0) errors_ = OwnedFile();
  if (got <= 0) return false;
  error_tail_.append(bytes.data(), static_cast<std::size_t>(got));
  if (error_tail_.size() > kErrorTailBytes) {
    error_tail_.erase(0, error_tail_.size() - kErrorTailBytes);
  }
  return true;
}

bool ChildTalk::send(std::string_view bytes, Time deadline) {
  while (!bytes.empty()) {
    const ssize_t sent =
        ::send(talk_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if ((errno != EAGAIN && errno != EWOULDBLOCK) || !wait(POLLOUT, deadline)) return false;
  }
  return true;
}

ChildTalk::Got ChildTalk::receive(std::string& bytes, Time deadline) {
  for (;;) {
    if (!wait(POLLIN, deadline)) return Got::nothing;
    std::vector<char> some(65536);  // threads may have a stack this small
    const ssize_t got = read_some(talk_.get(), some);
    if (got == 0) return Got::end;
    if (got < 0) continue;
    bytes.append(some.data(), static_cast<std::size_t>(got));
    return Got::bytes;
  }
}

std::string ChildTalk::last_words() {
  constexpr auto kPatience = std::chrono::milliseconds(1000);
  const bool alone = child_->ended(std::chrono::steady_clock::now() + kPatience);
  const std::optional<int> status = child_->end();
  while (errors_.get() >= 0 && take_errors()) {
  }
  std::string how = alone ? "ended" : "said no more and had to be ended";
  if (status) how = describe_status(*status);
  const std::size_t last = error_tail_.find_last_not_of("\n\r ");
  if (last == std::string::npos) return how;
  const std::size_t begin = error_tail_.rfind('\n', last);
  const std::size_t first = begin == std::string::npos ? 0 : begin + 1;
  return fmt::format("{}: {}", how, error_tail_.substr(first, last + 1 - first));
}

}  // namespace vqgen
