// Inputs that find bugs: outlier channels, skewed and constant codes, ragged lengths, windows and
// sinks of every size, garbage wherever nothing may be read. One seed gives the same bytes on every
// machine.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/access/access_counts.h"
#include "core/format/quantized_tensor.h"
#include "runtime/verify/hard_tensor.h"

namespace vqgen {

// full: problem.shape.tokens each. ragged: 0, 1 and full among them as far as the batch allows
// (one sequence: anything from 1 up), else random, half of it next to a multiple of 64.
enum class LengthPattern { full, ragged };
template <>
inline constexpr auto enum_names<LengthPattern> = std::array{"full", "ragged"};

struct HardInput {
  std::uint64_t seed = 1;
  CodePattern codes = CodePattern::uniform;
  LengthPattern lengths = LengthPattern::full;
  std::vector<std::int32_t> given_lengths = {};  // of each sequence, in place of a pattern's
  double skew = 1;                               // of CodePattern::zipf
  std::vector<AccessCounts> captured =
      {};  // of CodePattern::captured, as match_access_counts() has it
  // Query tokens of a sequence: query_tokens each, or 0, query_tokens and numbers between.
  LengthPattern counts = LengthPattern::full;
  bool fresh = false;  // their keys and values come with them, not in the cache
  std::optional<PageOrder> page_order = {};  // drawn where it is not given
  // Keys whose channels have scales get dead, biased and outlying ones (uneven_channels.h). Queries
  // are then as without them, so that scores may spread by hundreds.
  bool uneven = false;
  int active_experts = 0;  // that have rows, of lengths full; 0: as many as can have
};

// Of operand number `operand` of the problem.
CodeLaw law_of(const HardInput& input, std::size_t operand);

}  // namespace vqgen
