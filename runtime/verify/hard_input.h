// Inputs that find bugs: outlier channels, skewed and constant codes, ragged lengths, windows and
// sinks of every size, garbage wherever nothing may be read. A seed gives the same bytes on every
// machine.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/access/access_counts.h"
#include "core/format/quantized_tensor.h"
#include "runtime/verify/hard_tensor.h"

namespace vqgen {

// full: problem.shape.tokens each. ragged: 0, 1 and full as the batch allows (one sequence:
// anything from 1 up), the others random, half of them next to a multiple of 64.
enum class LengthPattern { full, ragged };
template <>
inline constexpr auto enum_names<LengthPattern> = std::array{"full", "ragged"};

struct HardInput {
  std::uint64_t seed = 1;
  CodePattern codes = CodePattern::uniform;
  LengthPattern lengths = LengthPattern::full;
  std::vector<std::int32_t> given_lengths = {};  // per sequence; overrides `lengths`
  double skew = 1;                               // exponent of CodePattern::zipf
  std::vector<AccessCounts> captured = {};  // for CodePattern::captured, from match_access_counts()
  // Query tokens per sequence: query_tokens each, or 0, query_tokens and numbers between.
  LengthPattern counts = LengthPattern::full;
  bool fresh = false;  // their keys and values come with them, not in the cache
  std::optional<PageOrder> page_order = {};  // drawn if it is not given
  // Gives keys whose channels have scales dead, biased and outlying channels (uneven_channels.h).
  // Queries do not change, so scores may spread by hundreds.
  bool uneven = false;
  int active_experts = 0;  // experts with rows, for full lengths; 0: as many as can have rows
};

// The code law of operand number `operand` of the problem.
CodeLaw law_of(const HardInput& input, std::size_t operand);

}  // namespace vqgen
