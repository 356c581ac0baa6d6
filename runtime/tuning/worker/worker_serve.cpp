#include "runtime/tuning/worker/worker_serve.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

#include "core/error.h"
#include "core/files/files.h"
#include "core/json/leftovers.h"
#include "runtime/tuning/worker/line_buffer.h"

namespace vqgen {
namespace {

constexpr std::size_t kMostJobBytes = std::size_t{1} << 26;

// Nobody waits for this process any more.
[[noreturn]] void leave() {
  end_leftovers();
  ::_exit(0);
}

// Standard input and output, moved out of reach of prints and of what this process starts.
class Talk {
 public:
  Talk()
      : in_(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)),
        out_(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)) {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing < 0 || in_ < 0 || out_ < 0) {
      throw Error(ErrorKind::device, "the worker has no standard input and output");
    }
    ::dup2(nothing, STDIN_FILENO);
    ::close(nothing);
    std::thread([in = in_] {
      pollfd gone{in, POLLRDHUP, 0};
      while (::poll(&gone, 1, -1) < 0 && errno == EINTR) {
      }
      leave();
    }).detach();
  }

  std::optional<std::string> line() {
    for (;;) {
      if (std::optional<std::string> next = lines_.take()) return next;
      if (lines_.overflows()) {
        throw Error(ErrorKind::bad_input, "the job is longer than a line may be");
      }
      std::array<char, 65536> bytes;
      const ssize_t got = ::read(in_, bytes.data(), bytes.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return std::nullopt;
      lines_.add(std::string_view(bytes.data(), static_cast<std::size_t>(got)));
    }
  }

  void say(const WorkerWord& word) const {
    const std::string line = to_line(word) + '\n';
    if (write_all(out_, std::as_bytes(std::span(line))) != 0) leave();  // nobody is there
  }

 private:
  int in_;
  int out_;
  LineBuffer lines_{kMostJobBytes};
};

}  // namespace

int serve_worker(const MakeWorkbench& make) {
  Talk talk;
  try {
    const std::optional<std::string> first = talk.line();
    if (!first) return 0;
    const std::unique_ptr<Workbench> bench = make(read_setup(*first));
    talk.say({.word = Word::ready});
    while (const std::optional<std::string> line = talk.line()) {
      do_job(*bench, read_job(*line), [&](const Report& report) { talk.say({.report = report}); });
      talk.say({.word = Word::done});
    }
    return 0;
  } catch (const Error& error) {
    talk.say({.word = Word::failed, .why = error.what()});
    return error.exit_code();
  } catch (const std::exception& error) {
    talk.say({.word = Word::failed, .why = std::string("unexpected: ") + error.what()});
    return static_cast<int>(ErrorKind::device);
  }
}

}  // namespace vqgen
