// Runs cases in a child process, so that a case that crashes, is ended by a sanitizer or never ends
// is named like any other failure.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace vqgen::test {

struct GuardedFailure {
  std::size_t number = 0;
  std::string what;  // empty if all cases are fine
};

// Calls `run(number)` for 0 .. count - 1 in a child, up to the first that returns a fault or does
// not return. The child's memory is lost, except shared_counts.
GuardedFailure run_guarded(std::size_t count, const std::function<std::string(std::size_t)>& run);

// Zeros that this process shares with its children.
std::size_t* shared_counts(std::size_t count);

}  // namespace vqgen::test
