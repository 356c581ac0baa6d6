// A handler may not lock, and the threads that libraries start before main() do not have the mask
// that main() would set for a sigwait(). So the handler does no more than wake a thread.
#include "cli/interrupts.h"

#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>

#include "core/json/leftovers.h"

namespace vqgen::cli {
namespace {

sem_t woken;
std::atomic<int> first{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void wake(int signal) {
  const int kept = errno;
  int none = 0;
  if (first.compare_exchange_strong(none, signal)) ::sem_post(&woken);
  while (signal == SIGPIPE) ::pause();  // the write that failed says nothing of its own
  errno = kept;
}

[[noreturn]] void end_by(int signal) {
  end_leftovers();
  ::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(signal);
  ::_exit(128 + signal);
}

}  // namespace

void end_cleanly_on_signals() {
  ::signal(SIGXFSZ, SIG_IGN);
  ::sem_init(&woken, 0, 0);
  try {
    std::thread([] {
      while (::sem_wait(&woken) != 0) {
      }
      end_by(first);
    }).detach();
  } catch (const std::system_error&) {
    return;  // no thread is to be had: signals end the tool as they end any
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action.sa_handler = wake;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace vqgen::cli
