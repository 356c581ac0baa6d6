// The compile-time facts of one VQ format as a kernel needs them, and the shape of its codebooks:
//
//   codebooks   [unit][stage][entry][vector_size] of 16-bit elements, 16-byte aligned
//   scales      [unit][stage] fp32, only where the format has stage scales
//
// A *unit* is what one codebook set serves. KV cache: unit = head * units_per_head + channel group
// (units_per_head is 1 for scope head; scope tensor has one unit for all heads). Weights: unit =
// (row / unit_rows) * units_per_row + column / unit_columns.
#pragma once

#include <vq/layout/codes.h>

namespace vq {

struct FormatConfig {
  int vector_size;    // elements one code stands for
  int index_bits;     // bits of a code
  int residuals;      // stages summed up
  bool stage_scales;  // a factor per unit and stage
  bool smooth;        // keys were divided by a factor per channel
  bool hadamard;      // keys were multiplied by the orthonormal Hadamard matrix
  bool per_head;      // KV cache: units differ from head to head
  int unit_elements;  // elements of a row that one unit serves (head_dim, or the channel group)
  Level level;        // where the codebooks stand
};

VQ_HD constexpr int entries(const FormatConfig& f) { return 1 << f.index_bits; }

// Elements of one unit's codebooks, all stages.
VQ_HD constexpr i64 unit_codebook_elements(const FormatConfig& f) {
  return i64{f.residuals} * entries(f) * f.vector_size;
}

}  // namespace vq
