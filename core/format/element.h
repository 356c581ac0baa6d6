// 16-bit element types and their bitwise conversions on the host, shared with the host machine
// layer.
#pragma once

#include <vq/host_element.h>

#include <cstdint>

#include "core/json/fields.h"

namespace vqgen {

using DType = vq::Element;

// Round to nearest even; overflow gives infinity, NaN stays NaN. Thread-safe, exact inverses on
// every 16-bit value but NaN payloads.
using vq::host::bf16_from_float;
using vq::host::bf16_to_float;
using vq::host::f16_from_float;
using vq::host::f16_to_float;

inline std::uint16_t element_from_float(DType type, float value) {
  return type == DType::f16 ? f16_from_float(value) : bf16_from_float(value);
}
inline float element_to_float(DType type, std::uint16_t bits) {
  return type == DType::f16 ? f16_to_float(bits) : bf16_to_float(bits);
}

}  // namespace vqgen
