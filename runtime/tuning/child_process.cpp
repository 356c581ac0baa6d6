#include "runtime/tuning/child_process.h"

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
#include <thread>

#include "core/error.h"

namespace vqgen {
namespace {

constexpr std::size_t kErrorTailBytes = 2048;

[[noreturn]] void fail_start(const std::string& program, int code) {
  throw Error(ErrorKind::device,
              fmt::format("cannot start the worker {}: {}", program, std::strerror(code)));
}

// Its own group, so that what it starts ends with it; signals as they are for any program.
class Attributes {
 public:
  Attributes() {
    posix_spawnattr_init(&value);
    sigset_t none, changed;
    sigemptyset(&none);
    sigemptyset(&changed);
    sigaddset(&changed, SIGPIPE);
    posix_spawnattr_setsigmask(&value, &none);
    posix_spawnattr_setsigdefault(&value, &changed);
    posix_spawnattr_setpgroup(&value, 0);
    posix_spawnattr_setflags(
        &value, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~Attributes() { posix_spawnattr_destroy(&value); }
  posix_spawnattr_t value;
};

// Bytes that are there now; 0 at the end, -1 where there are none yet.
ssize_t read_some(int file, std::array<char, 4096>& to) {
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

ChildProcess::ChildProcess(const std::vector<std::string>& command) {
  if (command.empty()) throw Error(ErrorKind::device, "cannot start a worker: no program is named");
  int talk[2], errors[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk) != 0) {
    fail_start(command.front(), errno);
  }
  talk_ = OwnedFile(talk[0]);
  const OwnedFile child_talk(talk[1]);
  if (::pipe2(errors, O_CLOEXEC) != 0) fail_start(command.front(), errno);
  errors_ = OwnedFile(errors[0]);
  const OwnedFile child_errors(errors[1]);
  for (const int mine : {talk[0], errors[0]}) ::fcntl(mine, F_SETFL, O_NONBLOCK);

  std::vector<char*> arguments;
  for (const std::string& part : command) arguments.push_back(const_cast<char*>(part.c_str()));
  arguments.push_back(nullptr);
  Attributes attributes;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, talk[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, talk[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors[1], STDERR_FILENO);
  const int failed =
      posix_spawnp(&pid_, arguments[0], &actions, &attributes.value, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    pid_ = -1;
    fail_start(command.front(), failed);
  }
}

ChildProcess::~ChildProcess() { finish(std::chrono::milliseconds(0)); }

// The status; nullopt where it had to be ended. The process is a zombie until its group has been
// ended, so that the group's number is no other's.
std::optional<int> ChildProcess::finish(std::chrono::milliseconds patience) {
  if (pid_ < 0) return std::nullopt;
  const auto until = std::chrono::steady_clock::now() + patience;
  bool ended = false;
  for (;;) {
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT | WNOHANG);
    ended = info.si_pid == pid_;
    if (ended || std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ::kill(-pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return ended ? std::optional(status) : std::nullopt;
}

// Until one of `events` is ready on the socket, for which errors are taken meanwhile.
bool ChildProcess::wait(int events, Time deadline, int& ready) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    constexpr long long kMostWait = 3'600'000;
    const int timeout = static_cast<int>(std::clamp<long long>(left.count(), 0, kMostWait));
    pollfd files[2] = {{talk_.get(), static_cast<short>(events), 0}, {errors_.get(), POLLIN, 0}};
    const int count = ::poll(files, 2, timeout);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0 && files[1].revents != 0) take_errors();
    ready = count > 0 ? files[0].revents : 0;
    if (ready != 0) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

bool ChildProcess::take_errors() {
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

bool ChildProcess::send(std::string_view text, Time deadline) {
  std::string line(text);
  line += '\n';
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t sent = ::send(talk_.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      rest.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    int ready = 0;
    if ((errno != EAGAIN && errno != EWOULDBLOCK) || !wait(POLLOUT, deadline, ready)) return false;
  }
  return true;
}

ChildProcess::Got ChildProcess::receive(std::string& line, Time deadline) {
  for (;;) {
    if (std::optional<std::string> next = lines_.take()) {
      line = std::move(*next);
      return Got::line;
    }
    if (lines_.overflows()) return Got::too_long;
    int ready = 0;
    if (!wait(POLLIN, deadline, ready)) return Got::nothing;
    std::array<char, 4096> bytes;
    const ssize_t got = read_some(talk_.get(), bytes);
    if (got == 0) return Got::end;
    if (got > 0) lines_.add(std::string_view(bytes.data(), static_cast<std::size_t>(got)));
  }
}

std::string ChildProcess::last_words() {
  constexpr auto kPatience = std::chrono::milliseconds(1000);
  const std::optional<int> status = finish(kPatience);
  while (errors_.get() >= 0 && take_errors()) {
  }
  std::string how = "said no more and had to be ended";
  if (status && WIFSIGNALED(*status)) {
    how = fmt::format("ended by signal {} ({})", WTERMSIG(*status), strsignal(WTERMSIG(*status)));
  } else if (status) {
    how = fmt::format("ended with status {}", WEXITSTATUS(*status));
  }
  const std::size_t last = error_tail_.find_last_not_of("\n\r ");
  if (last == std::string::npos) return how;
  const std::size_t begin = error_tail_.rfind('\n', last);
  const std::size_t first = begin == std::string::npos ? 0 : begin + 1;
  return fmt::format("{}: {}", how, error_tail_.substr(first, last + 1 - first));
}

}  // namespace vqgen
