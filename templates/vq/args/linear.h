// The argument struct of gemv and gemm, y = x W^T, shared by host and device. Device pointers;
// nothing is owned.
#pragma once

#include <vq/args/quantized.h>

namespace vq {

struct LinearArgs {
  static constexpr const char* kType = "LinearArgs";
  const u16* x;  // [rows][in_features]; fragments, warpgroups, rowgroups, bytes and bytegroups,
                 // in_features % 8 == 0: 16-byte aligned
  u16* y;        // [rows][y_columns()]
  QuantizedArgs weights;  // rows [out_features]; the same, and slices: aligned to code_words words
  const float* output_scales;  // [out_features]; null where the format has none
  float* partials;  // [splits][the problem's rows][out_features] fp32; null if none are stored
  u32* counters;    // [slots][blocks of rows][blocks of outputs], zeros; for plans whose last block
                    // merges
  i32 rows;         // rows of x and y, 1 to the problem's; others are not touched
  u8* staged;       // what a first kernel makes of x, CallShape::handed_bytes; null without one
  // MoE: [experts + 1], not descending, else null. Rows expert_rows[e] .. expert_rows[e + 1] - 1 of
  // x, y and partials are expert e's; those past the problem's maximum are ignored. Weights and
  // output_scales are dense, expert after expert. Bad offsets spoil this call's rows only.
  const i32* expert_rows;
  // [rows][y_columns()], may be y; null unless the epilogue has a residual.
  const u16* residual;
  float multiplier;  // of an epilogue that has one
};

}  // namespace vq
