#include "runtime/verify/hard_input.h"

#include "runtime/verify/row_decoder.h"

namespace vqgen {

CodeLaw law_of(const HardInput& input, std::size_t operand) {
  CodeLaw law{.pattern = input.codes, .skew = input.skew};
  if (law.pattern == CodePattern::captured) {
    require(operand < input.captured.size(), "captured codes: an operand has no profile");
    law.counts = input.captured[operand].counts;
  }
  return law;
}

}  // namespace vqgen
