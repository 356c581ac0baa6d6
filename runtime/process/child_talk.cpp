#include "runtime/process/child_talk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace vqgen {
namespace {

constexpr std::size_t kErrorTailBytes = 2048;

// Bytes that are there now; 0 at the end, -1 where there are none yet.
ssize_t read_some(int file, std::span<char> to) {
  ssize_t got = 0;
  do {
    got = ::read(file, to.data(), to.size());
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return 0;  // reset: closed
  return got;
}

}  // namespace

ChildTalk::Pipes ChildTalk::open_pipes(const ChildSetup& setup) {
  int talk[2] = {-1, -1};
  int errors[2] = {-1, -1};
  const bool opened = ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk) == 0 &&
                      ::pipe2(errors, O_CLOEXEC) == 0;
  const int code = errno;
  Pipes pipes{above_standard(OwnedFile(talk[0])), above_standard(OwnedFile(errors[0])),
              above_standard(OwnedFile(talk[1])), above_standard(OwnedFile(errors[1]))};
  if (!opened) {
    throw StartError(
        code, fmt::format("cannot start '{}': no pipe to it: {}; close some files",
                          setup.command.empty() ? "" : setup.command.front(), std::strerror(code)));
  }
  for (const OwnedFile* mine : {&pipes.talk, &pipes.errors}) {
    ::fcntl(mine->get(), F_SETFL, O_NONBLOCK);
  }
  return pipes;
}

ChildTalk::ChildTalk(const ChildSetup& setup) : ChildTalk(setup, open_pipes(setup)) {}

ChildTalk::ChildTalk(const ChildSetup& setup, Pipes pipes)
    : talk_(std::move(pipes.talk)),
      errors_(std::move(pipes.errors)),
      child_(setup, {pipes.child_talk.get(), pipes.child_talk.get(), pipes.child_errors.get()}) {}

// Until one of `events` is ready on the socket; errors are taken meanwhile.
bool ChildTalk::wait(int events, Time deadline, int& ready) {
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
    int ready = 0;
    if ((errno != EAGAIN && errno != EWOULDBLOCK) || !wait(POLLOUT, deadline, ready)) return false;
  }
  return true;
}

ChildTalk::Got ChildTalk::receive(std::string& bytes, Time deadline) {
  for (;;) {
    int ready = 0;
    if (!wait(POLLIN, deadline, ready)) return Got::nothing;
    std::array<char, 65536> some;
    const ssize_t got = read_some(talk_.get(), some);
    if (got == 0) return Got::end;
    if (got < 0) continue;
    bytes.append(some.data(), static_cast<std::size_t>(got));
    return Got::bytes;
  }
}

std::string ChildTalk::last_words() {
  constexpr auto kPatience = std::chrono::milliseconds(1000);
  const bool alone = child_.ended(std::chrono::steady_clock::now() + kPatience);
  const std::optional<int> status = child_.end();
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
