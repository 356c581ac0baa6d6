// Numbers within blocks of bytes, which need not be aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/format/element.h"

namespace vqgen {

inline unsigned byte_at(const std::byte* at, int index = 0) {
  return std::to_integer<unsigned>(at[index]);
}
inline unsigned u16_at(const std::byte* at) {
  std::uint16_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}
inline std::uint32_t u32_at(const std::byte* at) {
  std::uint32_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}
inline float f16_at(const std::byte* at) {
  return f16_to_float(static_cast<std::uint16_t>(u16_at(at)));
}

}  // namespace vqgen
