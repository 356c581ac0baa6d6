// The argument struct of weight_dequantize, shared by host and device. Device pointers; nothing is
// owned.
#pragma once

#include <vq/args/quantized.h>

namespace vq {

struct WeightDequantizeArgs {
  static constexpr const char* kType = "WeightDequantizeArgs";
  u16* out;  // [rows][in_features], row r of it being row first_row + r of the weights; 16-byte
             // aligned where in_features % 8 == 0
  QuantizedArgs weights;       // rows [out_features]
  const float* output_scales;  // [out_features]; null where the format has none
  i64 first_row;               // first_row + rows <= out_features
  i32 rows;                    // 1 to the problem's
};

}  // namespace vq
