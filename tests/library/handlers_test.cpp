// vqgen_prepare() leaves a program's handlers, ignored signals and mask alone, before, during and
// after it compiles for CUDA.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

#include "runtime/backend/cuda/cuda_backend.h"
#include "tests/library/fake_backend.h"

namespace vqgen::library::test {
namespace {

struct NoKernel final : LoadedKernel {
  void enqueue(std::size_t, std::span<const std::byte>, void*) const override {}
};

// Compiles as the CUDA backend does, but has no device to load for.
class CompilingBackend final : public NoDevice {
 public:
  std::string_view name() const override { return "cuda"; }
  Machine machine() const override { return Machine::cuda; }
  CompilerIdentity compiler(const KernelSource& source) const override {
    return cuda_->compiler(source);
  }
  Artifact compile(const KernelSource& source) const override { return cuda_->compile(source); }
  std::unique_ptr<LoadedKernel> load(const Artifact&, const KernelSource&) override {
    return std::make_unique<NoKernel>();
  }

 private:
  std::unique_ptr<Backend> cuda_ = make_cuda_backend();
};

std::atomic<int> caught{0};
extern "C" void count_signal(int) { ++caught; }
extern "C" void reap_all(int) {
  const int kept = errno;
  while (::waitpid(-1, nullptr, WNOHANG) > 0) ++caught;
  errno = kept;
}

// The disposition of each signal in this process.
std::vector<struct sigaction> dispositions() {
  std::vector<struct sigaction> all(NSIG);
  for (int number = 1; number < NSIG; ++number) {
    ::sigaction(number, nullptr, &all[static_cast<std::size_t>(number)]);
  }
  return all;
}
bool same(const struct sigaction& a, const struct sigaction& b) {
  return a.sa_handler == b.sa_handler && a.sa_flags == b.sa_flags;
}
std::vector<int> changed(const std::vector<struct sigaction>& before) {
  const std::vector<struct sigaction> now = dispositions();
  std::vector<int> numbers;
  for (std::size_t i = 1; i < now.size(); ++i) {
    if (!same(now[i], before[i])) numbers.push_back(static_cast<int>(i));
  }
  return numbers;
}

class Handlers : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      backend_->compiler({});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    found_ = dispositions();
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask_found_);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE,
                             SIGILL, SIGUSR1, SIGALRM, SIGRTMIN}) {
      struct sigaction action {};
      action.sa_handler = count_signal;
      action.sa_flags = SA_RESTART;
      ::sigaction(number, &action, nullptr);
    }
    for (const int number : {SIGPIPE, SIGXFSZ}) ::signal(number, SIG_IGN);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
    caught = 0;
  }
  void TearDown() override {
    for (std::size_t i = 1; i < found_.size(); ++i) {
      ::sigaction(static_cast<int>(i), &found_[i], nullptr);
    }
    if (!found_.empty()) ::pthread_sigmask(SIG_SETMASK, &mask_found_, nullptr);
  }
  // Prepares one op that is compiled, while another thread runs `meanwhile` over and over.
  template <class Meanwhile>
  void prepare(Meanwhile&& meanwhile) {
    vqgen_runtime runtime{
        std::make_unique<Registry>(backend_, nullptr, RegistryOptions{.max_buckets = 1})};
    std::atomic<bool> done{false};
    std::thread watch([&] {
      while (!done) meanwhile();
    });
    vqgen_op* op = nullptr;
    EXPECT_EQ(vqgen_prepare(&runtime, gemv_json().dump().c_str(), nullptr, &op), VQGEN_OK)
        << vqgen_last_error();
    done = true;
    watch.join();
    vqgen_op_release(op);
  }

  std::shared_ptr<Backend> backend_ = std::make_shared<CompilingBackend>();
  std::vector<struct sigaction> found_;
  sigset_t mask_found_{};
};

TEST_F(Handlers, AreKeptThroughACompilationAndWhileItLasts) {
  const std::vector<struct sigaction> before = dispositions();
  sigset_t mask_before, mask_after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask_before);
  std::vector<int> replaced;
  prepare([&] {
    for (const int number : changed(before)) replaced.push_back(number);
  });
  EXPECT_EQ(replaced, std::vector<int>{});
  EXPECT_EQ(changed(before), std::vector<int>{});
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask_after);
  for (int number = 1; number < NSIG; ++number) {
    EXPECT_EQ(sigismember(&mask_before, number), sigismember(&mask_after, number)) << number;
  }
}

// A server that is asked to end compiles to the end and handles each request itself.
TEST_F(Handlers, SignalsThatArriveMeanwhileAreTheProgramsOwn) {
  int sent = 0;
  prepare([&] {
    ::kill(::getpid(), sent % 2 == 0 ? SIGINT : SIGTERM);
    ++sent;
    while (caught < sent) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  });
  EXPECT_GT(sent, 0);
  EXPECT_EQ(caught, sent);
}

// A program that collects the statuses of all children, the compiler's too.
TEST_F(Handlers, AProgramThatReapsAllChildrenCompilesAllTheSame) {
  struct sigaction action {};
  action.sa_handler = reap_all;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGCHLD, &action, nullptr);
  prepare([] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  ::signal(SIGCHLD, SIG_IGN);
  prepare([] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
}

}  // namespace
}  // namespace vqgen::library::test
