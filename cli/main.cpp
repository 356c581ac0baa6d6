// vqgen: the command line tool. The one place that catches, prints errors and sets the exit code,
// and says how signals end the tool.
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <thread>

#include "cli/command.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "core/json/leftovers.h"
#include "core/roomy_stack.h"

namespace vqgen::cli {
namespace {

// A handler may not lock, and the threads that libraries start before main() do not have the mask
// that main() would set for a sigwait(). So the handler does no more than wake a thread.
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

// Makes SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGPIPE remove leftovers (core/json/leftovers.h)
// before they end the process; signals that the caller ignores, as nohup does, stay ignored. A file
// beyond its size limit is a write error. Call it once, before any thread starts.
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

int report_failure(Output& output, const std::string& message, int code) {
  output.note("vqgen: {}", message);
  output.document = {{"error", message_line(message)}, {"exit_code", code}};
  output.finish();
  return code;
}

int main_checked(int argc, char** argv) {
  CLI::App app;
  Output output;
  // A usage error may be found before CLI11 comes to the flag.
  output.json = std::find(argv + 1, argv + argc, std::string_view("--json")) != argv + argc;
  declare_commands(app, output);
  try {
    app.parse(argc, argv);
    if (!output.finish()) {
      output.note("vqgen: standard output could not be written; free some space there");
      return static_cast<int>(ErrorKind::bad_input);
    }
    return output.exit_code;
  } catch (const CLI::Success& request) {  // --help and --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return report_failure(output, usage_message(app, error),
                          static_cast<int>(ErrorKind::bad_input));
  } catch (const Error& error) {
    return report_failure(output, error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return report_failure(output, "out of memory; use a smaller problem",
                          static_cast<int>(ErrorKind::bad_input));
  } catch (const std::exception& error) {
    return report_failure(output, std::string("unexpected: ") + error.what(),
                          static_cast<int>(ErrorKind::device));
  }
}

}  // namespace
}  // namespace vqgen::cli

int main(int argc, char** argv) {
  return vqgen::on_roomy_stack([&] {
    vqgen::cli::end_cleanly_on_signals();
    return vqgen::cli::main_checked(argc, argv);
  });
}
