// The numbers that a scalar code holds, one for each element (layout/format.h): read, and written
// by rounding to the nearest; beyond the largest they are clamped.
#pragma once

#include <vq/codebook/entry.cuh>

namespace vq {

//   number(code, i)      of element i
//   bits(value)          the number nearest to `value`, as a code holds it; some number for NaN
template <Decoder kDecoder, int kVectorSize>
struct ScalarCode;

template <int kVectorSize>
struct ScalarCode<Decoder::scalar, kVectorSize> {
  static constexpr int kBits = 16 / kVectorSize;
  static constexpr float kPeak = static_cast<float>((1 << (kBits - 1)) - 1);
  VQ_DEVICE static float number(u32 code, int i) {
    return static_cast<float>(static_cast<i32>(code << (32 - kBits * (i + 1))) >> (32 - kBits));
  }
  VQ_DEVICE static u32 bits(float value) {
    return static_cast<u32>(nearest_within(value, kPeak)) & ((1u << kBits) - 1u);
  }
};

// Steps from a zero; the lowest for NaN.
template <int kVectorSize>
struct ScalarCode<Decoder::affine, kVectorSize> {
  static constexpr int kBits = 16 / kVectorSize;
  static constexpr float kPeak = static_cast<float>((1 << kBits) - 1);
  VQ_DEVICE static float number(u32 code, int i) {
    return static_cast<float>(code >> kBits * i & ((1u << kBits) - 1u));
  }
  VQ_DEVICE static u32 bits(float value) {
    value = value > kPeak ? kPeak : value > 0.0f ? value : 0.0f;
    return static_cast<u32>(static_cast<i32>(value + 0.5f));
  }
};

// Four bits of exponent with a bias of 7 and three of mantissa; no infinity. The bits below the
// sign are those of an f16 that is 2^8 times less. 0x7f, which is NaN, is never written and read as
// 480.
template <int kVectorSize>
struct ScalarCode<Decoder::e4m3, kVectorSize> {
  static constexpr int kBits = 8;
  static constexpr float kPeak = 448.0f;
  VQ_DEVICE static float number(u32 code, int i) {
    const u32 byte = code >> kBits * i & 0xffu;
    return to_float<Element::f16>(static_cast<u16>((byte & 0x80u) << 8 | (byte & 0x7fu) << 7)) *
           256.0f;
  }
  // Ties to even.
  VQ_DEVICE static u32 bits(float value) {
    value = value > kPeak ? kPeak : value > -kPeak ? value : -kPeak;
    const u32 sign = float_bits(value) >> 24 & 0x80u;
    const u32 magnitude = float_bits(value) & 0x7fffffffu;
    constexpr u32 kLeastNormal = 0x3c800000u;  // 2^-6
    if (magnitude < kLeastNormal) {
      const float steps = float_from_bits(magnitude) * 512.0f + 8388608.0f;  // of 2^-9
      return sign | (float_bits(steps) & 0xfu);
    }
    const u32 rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
    return sign | ((rounded >> 20) - (120u << 3));
  }
};

// A row's scale word (layout/format.h): x = zero + scale * number.
struct TokenScale {
  float scale, zero;
  VQ_DEVICE float steps(float value) const { return scale == 0.0f ? 0.0f : (value - zero) / scale; }
};
template <Decoder kDecoder, Element kElement>
VQ_DEVICE TokenScale token_scale(u32 word) {
  if constexpr (kDecoder != Decoder::affine) {
    return {float_from_bits(word), 0.0f};
  } else {
    return {to_float<kElement>(static_cast<u16>(word & 0xffffu)),
            to_float<kElement>(static_cast<u16>(word >> 16))};
  }
}

// Range of the finite ones of some numbers, or of their magnitudes if codes have no zero; and the
// scale word that maps the range to the codes' range. Without any number the scale is 1, or for
// affine codes zero 0 and scale 0.
template <Decoder kDecoder, Element kElement, int kVectorSize>
struct ScaledRange {
  static constexpr bool kAffine = kDecoder == Decoder::affine;
  float low = infinity();
  float high = -infinity();
  VQ_DEVICE void join(float other_low, float other_high) {
    low = other_low < low ? other_low : low;
    high = other_high > high ? other_high : high;
  }
  VQ_DEVICE void take(float value) {
    const float magnitude = float_from_bits(float_bits(value) & 0x7fffffffu);
    if (!(magnitude < infinity())) return;
    join(kAffine ? value : 0.0f, kAffine ? value : magnitude);
  }
  VQ_DEVICE u32 word() const {
    constexpr float kPeak = ScalarCode<kDecoder, kVectorSize>::kPeak;
    if constexpr (!kAffine) return float_bits(high > 0.0f ? high / kPeak : 1.0f);
    if (!(low <= high)) return 0;
    const u16 zero = from_float<kElement>(low + 0.0f);  // which turns -0
    return static_cast<u32>(zero) << 16 | from_float<kElement>((high - low) / kPeak);
  }
};

}  // namespace vq
