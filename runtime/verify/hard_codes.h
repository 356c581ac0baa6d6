// Codes drawn by pattern straight into packed rows, as templates/vq/layout/codes.h orders them.
#pragma once

#include <functional>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "runtime/verify/random.h"

namespace vqgen {

enum class CodePattern {
  uniform,    // all codes alike
  zipf,       // the r-th most frequent code has weight r^-skew; which code that is, is random
  one_hot,    // each row mostly (15/16) one code of its own
  all_equal,  // one random code throughout
  max_code,   // the last code throughout
  captured,   // as often as a histogram of each codebook says
};
template <>
inline constexpr auto enum_names<CodePattern> =
    std::array{"uniform", "zipf", "one_hot", "all_equal", "max_code", "captured"};

// A pattern, and what the two that take numbers go by.
struct CodeLaw {
  CodePattern pattern = CodePattern::uniform;
  double skew = 1;                        // of zipf
  std::vector<std::int64_t> counts = {};  // of captured: [item][unit][stage][entry], one item at
                                          // least; unit u has that of item u modulo their number
};

// Fills tensor.codes, whose sizes and format are set: with random bits throughout, padding too,
// then by pattern in those rows, of every head, for which patterned(sequence, row) holds, in all
// where it is empty. Codebooks that were never read as captured get codes that are uniform, and a
// lattice's signs are so always.
using RowFilter = std::function<bool(std::int64_t sequence, std::int64_t row)>;
void fill_codes(QuantizedTensor& tensor, const CodeLaw& law, Random& random,
                const RowFilter& patterned = {});

}  // namespace vqgen
