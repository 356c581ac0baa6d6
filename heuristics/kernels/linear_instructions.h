// Instructions that make operands of the codes of weights, as the cost model counts them.
#pragma once

#include "core/format/vq_format.h"

namespace vqgen {

// Instructions per warp that turn a code's entry into numbers: none for a table of elements, five
// for four bytes; for signs two more per word of two elements, for the lattice a parity and three
// (docs/internals/dataflows/README.md).
inline double rebuild_instructions(const VqFormat& format) {
  constexpr double kParity = 8;
  const double words = format.vector_size / 2.0;
  const double signs = format.decoder == Decoder::signs ? 2 + 2 * words : 0;
  if (format.entry_type == EntryType::int8 && format.group_inputs == 0)
    return 5 * words / 2 + signs;
  return format.decoder == Decoder::e8p ? kParity + 3 * words : signs;
}

// Instructions per warp that sign the bytes of an entry in integer products, four of a word at a
// time.
inline double byte_instructions(const VqFormat& format) {
  return format.decoder == Decoder::signs ? 1 + 7 * format.vector_size / 4.0 : 0;
}

// Instructions per warp that make a minimum besides of the words of a scale.
inline double minimum_instructions(const VqFormat& format) {
  return !format.group_minima ? 0 : format.group_scale_bits > 0 ? 4 : 2;
}

// Instructions per warp that read the factor of a sub-vector's group: two words, an address each,
// and their numbers.
inline double group_instructions(const VqFormat& format) {
  if (format.group_inputs == 0) return 0;
  return (format.group_scale_bits > 0 ? 14 : 6) + minimum_instructions(format);
}

// Instructions per warp that scale a sub-vector by its group: a lane's scale, which came with the
// codes, becomes a number once per group, and multiplies pairs of elements unless stages or, where
// `entries` is false, sums do.
inline double scaling_instructions(const VqFormat& format, bool entries = true) {
  if (format.group_inputs == 0) return 0;
  const double number = (format.group_scale_bits > 0 ? 8 : 3) + minimum_instructions(format);
  const double pairs = entries && format.num_codebooks == 1 ? format.vector_size / 2.0 : 0;
  return number * format.vector_size / format.group_inputs + pairs;
}

// True if stages with scales are summed in fp32 before a product.
inline bool adds_scaled_stages(const VqFormat& format, bool scaled_sums) {
  if (format.group_inputs > 0) return format.num_codebooks > 1;
  return format.stage_scales && !scaled_sums;
}

// Instructions per warp that make a 16-bit operand of an entry: rebuilding it, and adding up stages
// in pairs of elements, or in fp32 if they have scales.
inline double operand_instructions(const VqFormat& format) {
  const double summed = adds_scaled_stages(format, false) ? 2.0 * format.vector_size
                        : format.num_codebooks > 1        ? format.vector_size / 2.0
                                                          : 0;
  return rebuild_instructions(format) + scaling_instructions(format) + summed;
}

}  // namespace vqgen
