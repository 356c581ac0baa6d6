// Scales of groups of inputs, in words behind the codes of a row of weights:
//
//   bits 0      an f16 per group, in order, two to a word
//   bits 3, 4   a number s of so many bits per group, packed as codes are; then an f16 d for each
//               256 inputs, two to a word. The scale of a group is d (2 s + 1)
//
// With minima, each of these numbers has a second one in the bits above it: a group has m above s,
// and 256 inputs have e above d, or a group has two f16. The scale of a group is then d s, or the
// first f16. Its minimum e m, or the second, is subtracted from its scaled numbers. All words are
// padded to whole 16 bytes, so that rows are as aligned as their codes.
#pragma once

#include <vq/layout/codes.h>

namespace vq {

inline constexpr int kBlockInputs = 256;  // that share a d

struct GroupScales {
  int inputs = 0;  // of a group; 0 without such scales
  int bits = 0;    // of s
  bool minima = false;

  // Bits of what a group has, and of what 256 inputs have.
  VQ_HD constexpr int half_bits() const { return minima ? 32 : 16; }
  VQ_HD constexpr int group_bits() const {
    return bits == 0 ? half_bits() : minima ? 2 * bits : bits;
  }

  // Inputs of which a row has whole numbers.
  VQ_HD constexpr int whole() const { return bits > 0 ? kBlockInputs : inputs; }
  // Words of all s of a row.
  VQ_HD constexpr i64 packed_words(i64 row_inputs) const {
    return bits > 0 ? ceil_div(row_inputs / inputs * group_bits(), i64{32}) : 0;
  }
  // Words of a row's scales.
  VQ_HD constexpr i64 words(i64 row_inputs) const {
    if (inputs == 0) return 0;
    const i64 halves = ceil_div(row_inputs / whole() * half_bits(), i64{32});
    return ceil_div(packed_words(row_inputs) + halves, i64{4}) * 4;
  }
};

}  // namespace vq
