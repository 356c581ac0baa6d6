#include "tests/tuning/fake_workbench.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <thread>

#include "core/files/files.h"
#include "core/parallel.h"

namespace vqgen::test {
namespace {

void rest(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

[[noreturn]] void hang() {
  for (;;) rest(1000);
}

// The default action kills the process; a sanitizer's handler would exit.
[[noreturn]] void die_of(int signal) {
  ::signal(signal, SIG_DFL);
  ::raise(signal);
  std::_Exit(99);
}

constexpr int kFirstFile = 3;
constexpr int kFiles = 64;

bool is_socket(int file) {
  struct stat about {};
  return ::fstat(file, &about) == 0 && S_ISSOCK(about.st_mode);
}

// Writes past the worker's protocol, as a library that prints to a file would.
void on_the_socket(std::string_view text) {
  for (int file = kFirstFile; file < kFiles; ++file) {
    if (!is_socket(file)) continue;
    while (!text.empty()) {
      const ssize_t put = ::write(file, text.data(), text.size());
      if (put <= 0) break;
      text.remove_prefix(static_cast<std::size_t>(put));
    }
    return;
  }
}

void close_output() {
  for (int file = kFirstFile; file < kFiles; ++file) {
    if (is_socket(file)) ::shutdown(file, SHUT_WR);
  }
}

class FakeWorkbench final : public Workbench {
 public:
  explicit FakeWorkbench(std::string place) : place_(std::move(place)) {}

  void compile(std::span<const Plan> plans, bool serial, const CompileWatch& watch) override {
    plans_.assign(plans.begin(), plans.end());
    in_parallel(plans.size(), serial ? 1 : 4, [&](std::size_t i) {
      watch.begun(i);
      if (deed(i) == Deed::hang_in_compile) hang();
      if (deed(i) == Deed::slow_compile) rest(100);
      if (deed(i) == Deed::abort_in_compile) {
        rest(40);  // until others are compiling too
        die_of(SIGABRT);
      }
      watch.ended(i);
    });
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      if (deed(i) == Deed::abort_after_compile) die_of(SIGABRT);
    }
  }

  Measurement screen(std::size_t i) override {
    Measurement result = measure(i);
    if (deed(i) == Deed::not_a_time) result.time_us = std::numeric_limits<double>::quiet_NaN();
    if (deed(i) == Deed::zero_time) result.time_us = 0;
    return result;
  }

  Measurement seat(std::size_t i) override {
    Measurement result = measure(i);
    if (deed(i) == Deed::wrong_when_seated) result.outcome = Outcome::wrong;
    return result;
  }

  void move_data() override { ++moves_; }

  double round_us(std::size_t i) override {
    if (deed(i) == Deed::abort_in_round && ++rounds_ == 3) die_of(SIGABRT);
    return time_of(i) + kMovedUs * moves_ + 0.001 * turn_++;
  }

 private:
  const LinearSimt& plan(std::size_t i) const { return std::get<LinearSimt>(plans_.at(i)); }
  Deed deed(std::size_t i) const { return static_cast<Deed>(plan(i).chunk_columns); }
  double time_of(std::size_t i) const { return 10 + plan(i).splits; }

  Measurement measure(std::size_t i) {
    misbehave(deed(i));
    Measurement result;
    result.time_us = result.low_us = result.high_us = time_of(i);
    result.rel_err = 0.1 + 0.001 * plan(i).splits;  // no short decimal in binary
    result.registers = 40;
    result.shared_bytes = std::int64_t{1} << 20;
    if (deed(i) == Deed::wrong) {
      result.outcome = Outcome::wrong;
      result.why = "bytes \xff and a \n break";
      result.rel_err = std::numeric_limits<double>::infinity();
    }
    return result;
  }

  void misbehave(Deed what) {
    switch (what) {
      case Deed::late:
        return rest(50);
      case Deed::hang:
        hang();
      case Deed::segfault:
        die_of(SIGSEGV);
      case Deed::abort:
        die_of(SIGABRT);
      case Deed::exit_0:
        std::_Exit(0);
      case Deed::garbage:
        return on_the_socket("garbage\n");
      case Deed::endless_line:
        on_the_socket(std::string(std::size_t{3} << 20, 'x'));
        hang();
      case Deed::half_a_line:
        on_the_socket("{\"word\": \"rep");
        std::_Exit(0);
      case Deed::out_of_turn:
        return on_the_socket("{\"word\": \"done\"}\n");
      case Deed::closes_and_stays:
        close_output();
        hang();
      case Deed::device_fault:
        throw Error(ErrorKind::device, "an illegal address was met");
      case Deed::says_and_aborts:
        std::fputs("some noise\nthe reason for it\n", stderr);
        std::printf("a print that is no answer\n");
        std::fflush(stdout);
        die_of(SIGABRT);
      case Deed::leaves_a_child:
        leave_child();
        hang();
      default:
        return;
    }
  }

  void leave_child() const {
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) ::sleep(1000);
    }
    publish_text(place_, std::to_string(child));
  }

  std::string place_;
  std::vector<Plan> plans_;
  int rounds_ = 0;
  int turn_ = 0;
  int moves_ = 0;
};

}  // namespace

Plan plan_that(Deed deed, int splits) {
  LinearSimt plan;
  plan.chunk_columns = static_cast<int>(deed);
  plan.splits = splits;
  return plan;
}

std::unique_ptr<Workbench> fake_workbench(const WorkerSetup& setup) {
  if (setup.codes == "no device") throw Error(ErrorKind::device, "there is no device here");
  if (setup.codes == "dies") die_of(SIGABRT);
  if (setup.codes == "stays") hang();
  return std::make_unique<FakeWorkbench>(setup.codes);
}

}  // namespace vqgen::test
