// With VQGEN_SWEEP_THIRD set, a run takes a third of the cases of slow tests (scripts/test.sh).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <span>
#include <vector>

#include "core/error.h"

namespace vqgen::test {

// The number in a variable, or `otherwise` if it is not set. Throws Error(bad_input) unless it is
// at most `most`.
inline std::uint64_t number_of(const char* variable, std::uint64_t otherwise, std::uint64_t most) {
  const char* const given = std::getenv(variable);
  if (given == nullptr) return otherwise;
  std::uint64_t number = 0;
  const char* const end = given + std::strlen(given);
  const auto [stopped, error] = std::from_chars(given, end, number);
  if (error != std::errc() || stopped != end || number > most) {
    throw Error(ErrorKind::bad_input, fmt::format("{}: '{}' is no whole number up to {}; give one",
                                                  variable, given, most));
  }
  return number;
}

// The third of the cases that runs, from 1; 0 runs all.
inline std::uint64_t sweep_third() {
  static const std::uint64_t third = number_of("VQGEN_SWEEP_THIRD", 0, 3);
  return third;
}

// The third that is `number` thirds after this run's. What is in several lists runs in each run if
// each list has a number of its own.
inline std::uint64_t third_after(std::uint64_t number) {
  return sweep_third() == 0 ? 0 : (sweep_third() - 1 + number) % 3 + 1;
}

// True if case number `number` of those that a test draws itself is in this run's third.
inline bool in_third(std::uint64_t number) {
  return sweep_third() == 0 || number % 3 == sweep_third() - 1;
}

// This run's third of the cases, at least one of them; all for 0.
template <class T>
std::vector<T> a_third(std::span<const T> cases, std::uint64_t third) {
  const std::size_t parts = third == 0 ? 1 : std::min<std::size_t>(3, cases.size());
  std::vector<T> taken;
  for (std::size_t i = third == 0 ? 0 : (third - 1) % parts; i < cases.size(); i += parts) {
    taken.push_back(cases[i]);
  }
  return taken;
}
template <class T>
std::vector<T> a_third(std::initializer_list<T> cases, std::uint64_t third = sweep_third()) {
  return a_third(std::span<const T>(cases.begin(), cases.size()), third);
}
template <class Cases>
auto a_third(const Cases& cases, std::uint64_t third = sweep_third()) {
  return a_third(std::span<const typename Cases::value_type>(cases), third);
}

}  // namespace vqgen::test
