// How the codes of generated input are distributed, as people write it: uniform, zipf:S, or a file
// that was captured. Times of a VQ kernel depend on it, so it has a name by which tuned rows are
// kept apart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/verify/hard_input.h"

namespace vqgen {

struct CodeDistribution {
  std::string name = "uniform";  // MeasurePolicy::codes: uniform, zipf:1.2, profile:0123456789ab
  CodePattern pattern = CodePattern::uniform;
  double skew = 1;                          // of zipf
  std::vector<AccessCounts> profiles = {};  // of captured
  std::string source = {};                  // the file they are of
};

// Bytes of a profile's file, at most.
inline constexpr std::uint64_t kMostProfileBytes = std::uint64_t{1} << 28;

// "profile:" and the first 12 digits of the digest of a profile's text.
std::string captured_name(std::string_view text);

// "uniform", "zipf" (which is zipf:1), "zipf:S" with 0 < S <= 10, a profile of vqgen count-accesses
// (a path that ends in .json), or a bundle, which is profiled: its name is that of the profile that
// vqgen count-accesses writes. Error(bad_input) names `text`.
CodeDistribution read_codes(const std::string& text);

// Error(bad_input) where the file has no profile for an operand of the problem.
HardInput hard_input(const CodeDistribution& codes, std::uint64_t seed, const Problem& problem);

}  // namespace vqgen
