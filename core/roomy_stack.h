// Programs whose stack is as small as `ulimit -s` says: parsers, compilers and threads want more.
#pragma once

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <system_error>
#include <thread>

namespace vqgen {

inline constexpr rlim_t kUsualStack = rlim_t{8} << 20;

// The limit of the stacks of this process and of its children, if it is less than the usual 8 MiB.
inline std::optional<rlimit> small_stack() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kUsualStack) return std::nullopt;
  return limit;
}

// Returns call(). If the stack may have less than the usual 8 MiB, call() runs on a thread that has
// them, as all later threads do, or on the present stack if no thread can be made. Children may
// have as much of them as the hard limit allows. For the beginning of main(), before there are
// threads.
template <class Call>
int on_roomy_stack(Call&& call) {
  std::optional<rlimit> limit = small_stack();
  if (!limit) return call();
  limit->rlim_cur = std::min(kUsualStack, limit->rlim_max);
  ::setrlimit(RLIMIT_STACK, &*limit);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kUsualStack);
  pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
  int result = 0;
  try {
    std::thread([&] { result = call(); }).join();
  } catch (const std::system_error&) {
    return call();
  }
  return result;
}

}  // namespace vqgen
