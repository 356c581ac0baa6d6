// Codes drawn by pattern straight into packed rows, as templates/vq/layout/codes.h orders them.
#pragma once

#include <functional>

#include "core/quantized_tensor.h"
#include "runtime/verify/random.h"

namespace vqgen {

enum class CodePattern {
  uniform,    // all codes alike
  zipf,       // the r-th most frequent code has weight 1 / r; which code that is, is random
  one_hot,    // each row mostly (15/16) one code of its own
  all_equal,  // one random code throughout
  max_code,   // the last code throughout
};
template <>
inline constexpr auto enum_names<CodePattern> =
    std::array{"uniform", "zipf", "one_hot", "all_equal", "max_code"};

// Fills tensor.codes, whose sizes and format are set: with random bits throughout, padding too,
// then by pattern in those rows, of every head, for which patterned(sequence, row) holds.
void fill_codes(QuantizedTensor& tensor, CodePattern pattern,
                const std::function<bool(std::int64_t sequence, std::int64_t row)>& patterned,
                Random& random);

}  // namespace vqgen
