// Packed codes: a row is the codes of one token of one head (KV cache) or of one output feature
// (weights), `index_bits` each, least significant bit first, padded to a whole 32-bit word.
// Within a row the residual stages of one sub-vector stand side by side:
//
//   code number = sub_vector * residuals + stage        bit = code number * index_bits
//
// A code may straddle two words. No reader touches a word past the row's last.
#pragma once

#include <vq/annotations.h>
#include <vq/types.h>

namespace vq {

VQ_HD constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
VQ_HD constexpr i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
VQ_HD constexpr int round_up(int a, int unit) { return ceil_div(a, unit) * unit; }

// Words of a row that stores `elements` numbers (a multiple of vector_size).
VQ_HD constexpr i64 row_words(i64 elements, int vector_size, int residuals, int index_bits) {
  return ceil_div(elements / vector_size * residuals * index_bits, i64{32});
}

}  // namespace vq
