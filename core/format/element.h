// The 16-bit element types and their conversions on the host, by bits.
#pragma once

#include <cstdint>

#include "core/json/fields.h"

namespace vqgen {

using DType = vq::Element;

// Round to nearest even; overflow gives infinity, NaN stays NaN. Thread-safe, exact inverses on
// every 16-bit value but NaN payloads.
std::uint16_t f16_from_float(float value);
float f16_to_float(std::uint16_t bits);
std::uint16_t bf16_from_float(float value);
float bf16_to_float(std::uint16_t bits);

inline std::uint16_t element_from_float(DType type, float value) {
  return type == DType::f16 ? f16_from_float(value) : bf16_from_float(value);
}
inline float element_to_float(DType type, std::uint16_t bits) {
  return type == DType::f16 ? f16_to_float(bits) : bf16_to_float(bits);
}

}  // namespace vqgen
