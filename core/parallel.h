// A few long tasks on a few threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace vqgen {

// Calls task(0) .. task(count - 1), `threads` at a time, this one among them. After a task throws,
// no other begins; of those that threw, the first in the order is thrown on.
template <class Task>
void in_parallel(std::size_t count, int threads, const Task& task) {
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> faults(count);
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        task(i);
      } catch (...) {
        faults[i] = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::jthread> helpers;
  const std::size_t most = std::min<std::size_t>(count, static_cast<std::size_t>(threads));
  for (std::size_t i = 1; i < most; ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  for (const std::exception_ptr& fault : faults) {
    if (fault) std::rethrow_exception(fault);
  }
}

}  // namespace vqgen
