// Reading one code out of a packed row (layout/codes.h).
#pragma once

#include <vq/layout/codes.h>
#include <vq/machine.cuh>

namespace vq {

// The code of kBits that begins at `bit` of the words from `row` on, which are fetched by
// load(const u32*), from memory or from registers.
// A second word is touched only where the code reaches into it, so never past the row.
template <int kBits, class Load>
VQ_DEVICE u32 read_code_at(const u32* row, i64 bit, Load load) {
  const u32* word = row + (bit >> 5);
  const int shift = static_cast<int>(bit & 31);
  u32 code = load(word) >> shift;
  if constexpr (32 % kBits != 0) {
    if (shift + kBits > 32) code |= load(word + 1) << (32 - shift);
  }
  if constexpr (kBits == 32) {
    return code;
  } else {
    return code & ((1u << kBits) - 1u);
  }
}

// Code number `index` of the row that starts at `row`.
template <int kBits, class Load>
VQ_DEVICE u32 read_code(const u32* row, i64 index, Load load) {
  return read_code_at<kBits>(row, index * kBits, load);
}

}  // namespace vq
