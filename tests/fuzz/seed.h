// The seed of a run of the fuzz.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

namespace vqgen::test {

// VQGEN_FUZZ_SEED, or a new one in each run. It is printed, so that a failure can be repeated.
inline std::uint64_t fuzz_seed() {
  const char* const wanted = std::getenv("VQGEN_FUZZ_SEED");
  const std::uint64_t seed =
      wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device{}();
  std::printf("VQGEN_FUZZ_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

// The seed of one case, unrelated to those of its neighbours.
inline std::uint64_t case_seed(std::uint64_t seed, std::size_t number) {
  std::seed_seq parts{seed & 0xffffffffu, seed >> 32, std::uint64_t{number}};
  std::uint32_t words[2];
  parts.generate(words, words + 2);
  return std::uint64_t{words[0]} << 32 | words[1];
}

inline std::string repeat_line(std::uint64_t seed) {
  return fmt::format("\nrepeat with VQGEN_FUZZ_SEED={}\n", seed);
}

}  // namespace vqgen::test
