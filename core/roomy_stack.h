// Programs whose stack is as small as `ulimit -s` says: parsers, compilers and threads want more.
#pragma once

#include <pthread.h>
#include <sys/resource.h>

#include <cstddef>
#include <system_error>
#include <thread>

namespace vqgen {

// Returns call(). If the stack may have less than the usual 8 MiB, call() runs on a thread that has
// them, as all later threads do, or on the present stack if no thread can be made. For the
// beginning of main(), before there are threads.
template <class Call>
int on_roomy_stack(Call&& call) {
  constexpr std::size_t kUsual = std::size_t{8} << 20;
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kUsual) return call();
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kUsual);
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
