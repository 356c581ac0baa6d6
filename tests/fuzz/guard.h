// Cases in a child process, so that one that crashes, is ended by a sanitizer or never ends is
// named like any that fails.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace vqgen::test {

struct GuardedFailure {
  std::size_t number = 0;
  std::string what;  // empty where all cases are fine
};

// Calls `run(number)` for 0 .. count - 1 in a child, up to the first that returns what is wrong
// with it or does not return. Of the child's memory nothing is left but what is shared_counts.
GuardedFailure run_guarded(std::size_t count, const std::function<std::string(std::size_t)>& run);

// Zeros that the children of this process share with it.
std::size_t* shared_counts(std::size_t count);

}  // namespace vqgen::test
