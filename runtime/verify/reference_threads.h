// How many threads a double-precision reference is worth: its sums are each of one thread, so that
// their number changes no bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>

namespace vqgen {

// For so many multiply-adds; small ones are done before a thread has started.
inline int reference_threads(std::int64_t multiply_adds) {
  constexpr std::int64_t kWorth = 1 << 24;  // some 10 ms
  const auto cores = static_cast<std::int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  return static_cast<int>(std::clamp<std::int64_t>(multiply_adds / kWorth, 1, cores));
}

}  // namespace vqgen
