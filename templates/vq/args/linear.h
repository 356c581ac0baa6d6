// The argument struct of gemv and gemm, y = x W^T, shared by host and device. Device pointers;
// nothing is owned.
#pragma once

#include <vq/args/quantized.h>

namespace vq {

struct LinearArgs {
  static constexpr const char* kType = "LinearArgs";
  const u16* x;  // [rows][in_features]; fragments, warpgroups, rowgroups, bytes and bytegroups,
                 // in_features % 8 == 0: 16-byte aligned
  u16* y;        // [rows][out_features]
  QuantizedArgs weights;  // rows [out_features]; the same, and slices: aligned to code_words words
  const float* output_scales;  // [out_features]; null where the format has none
  float* partials;  // [splits][the problem's rows][out_features] fp32; null where splits == 1, and
                    // with combine cluster
  u32* counters;  // [slots][blocks of rows][blocks of outputs], zeros; for plans whose last block
                  // merges
  i32 rows;       // of x and y, 1 to the problem's: no others are read or written
  u8* staged;     // what a first kernel makes of x, CallShape::handed_bytes; null without one
  // Of grouped products, else null: [experts + 1]; rows expert_rows[e] .. expert_rows[e + 1] - 1 of
  // x and y are expert e's, none where both are equal. `weights` and output_scales are then those
  // of expert 0, behind which the others' stand without gaps (layout/linear.h), `rows` are those of
  // all experts, and partials have as many. Offsets do not descend; an expert with more rows than
  // the problem's has its first ones alone. Those out of range make results meaningless, of rows
  // of the call alone.
  const i32* expert_rows;
};

}  // namespace vq
