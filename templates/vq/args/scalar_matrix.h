// The argument struct of int8_quantize and int8_dequantize, shared by host and device. Device
// pointers; nothing is owned.
#pragma once

#include <vq/types.h>

namespace vq {

struct ScalarMatrixArgs {
  static constexpr const char* kType = "ScalarMatrixArgs";
  // Both [tokens][channels]: quantizing reads elements of the problem's type and writes signed
  // bytes, dequantizing the reverse. Aligned to an access (kernels/scalar_forms).
  const u8* from;
  u8* to;
  float* scales;    // [channels], 16-byte aligned: read where the problem gives them, else written
  float* partials;  // [splits][channels]; null where splits == 1 or scales are given
  i64 tokens;       // tokens of this call, from 0 to the problem's
};

}  // namespace vq
