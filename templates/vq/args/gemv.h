// The argument struct of gemv, y = x W^T, shared by host and device. Device pointers; nothing is
// owned.
#pragma once

#include <vq/args/quantized.h>

namespace vq {

struct GemvArgs {
  const u16* x;                // [rows][in_features]
  u16* y;                      // [rows][out_features]
  QuantizedArgs weights;       // rows [out_features]
  const float* output_scales;  // [out_features]; null where the format has none
};

}  // namespace vq
