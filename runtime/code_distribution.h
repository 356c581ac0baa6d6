// How the codes of generated input are distributed, as users write it: uniform, zipf:S, or a
// captured file. Times of a VQ kernel depend on it, so tuned rows are kept apart by its name.
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
  double skew = 1;                          // exponent of zipf
  std::vector<AccessCounts> profiles = {};  // the profiles of captured
  std::string source = {};                  // the file of the profiles
};

// The most bytes that a profile's file may have.
inline constexpr std::uint64_t kMostProfileBytes = std::uint64_t{1} << 28;

// "profile:" and the first 12 digits of the digest of a profile's text.
std::string captured_name(std::string_view text);

// "uniform", "zipf" (meaning zipf:1), "zipf:S" with 0 < S <= 10, a profile of vqgen count-accesses
// (a path that ends in .json), or a bundle, which is profiled and gets the name of that profile.
// Error(bad_input) names `text`.
CodeDistribution read_codes(const std::string& text);

// Throws Error(bad_input) if the file has no profile for an operand of the problem.
HardInput hard_input(const CodeDistribution& codes, std::uint64_t seed, const Problem& problem);

}  // namespace vqgen
