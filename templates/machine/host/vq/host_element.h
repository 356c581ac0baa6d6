// The 16-bit elements by bits. from_float rounds to nearest even; overflow gives infinity, NaN
// stays NaN. to_float is exact. The host layers convert by this too (core/format/element.h).
#pragma once

#include <vq/types.h>

namespace vq::host {

template <class To, class From>
[[gnu::always_inline]] inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

inline float f16_to_float(u16 half) {
  const u32 sign = static_cast<u32>(half & 0x8000) << 16;
  const u32 magnitude = static_cast<u32>(half & 0x7fff) << 13;
  if (magnitude >= 0x0f800000u) return bits<float>(sign | 0x7f800000u | magnitude);  // inf, NaN
  const float rebased = bits<float>(magnitude) * 0x1p112f;  // exact, subnormals too
  return bits<float>(sign | bits<u32>(rebased));
}

inline u16 f16_from_float(float value) {
  const u32 word = bits<u32>(value);
  const u32 sign = (word >> 16) & 0x8000u;
  const u32 magnitude = word & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<u16>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<u16>(sign | 0x7c00u);  // 65520 and above
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to multiples of 2^-24
    return static_cast<u16>(sign | (bits<u32>(bits<float>(magnitude) + 0.5f) - 0x3f000000u));
  }
  const u32 rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<u16>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float bf16_to_float(u16 half) { return bits<float>(static_cast<u32>(half) << 16); }

inline u16 bf16_from_float(float value) {
  const u32 word = bits<u32>(value);
  if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<u16>((word >> 16) | 0x40u);
  return static_cast<u16>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

// a b + c of elements as a float whose last bit is set where it is not exact, "to odd": rounded to
// an element from there it is rounded once. In double a b is exact; of the sum's rounding
// (Knuth's two sums) only the sign counts.
inline float fused_to_odd(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = c;
  double sum = product + addend;
  if (!(sum - sum == 0)) return static_cast<float>(sum);  // inf, NaN
  const double part = sum - product;
  const double missed = (product - (sum - part)) + (addend - part);
  const auto odd = [](auto word, bool beyond) { return (word - (beyond ? 1 : 0)) | 1; };
  if (missed != 0) sum = bits<double>(odd(bits<u64>(sum), (missed < 0) != (sum < 0)));
  const float rounded = static_cast<float>(sum);
  if (static_cast<double>(rounded) == sum || !(rounded - rounded == 0)) return rounded;
  const bool beyond = (static_cast<double>(rounded) < sum) == (rounded < 0);
  if (rounded == 0) return bits<float>((sum < 0 ? 0x80000000u : 0u) | 1u);
  return bits<float>(odd(bits<u32>(rounded), beyond));
}

}  // namespace vq::host
