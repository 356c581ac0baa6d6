// Numbers as two signed bytes: scaled so that the largest magnitude is kPeak, and rounded to
// integers 256 high + low, 15 bits and a sign.
#pragma once

#include <vq/codebook/entry.cuh>

namespace vq {

struct SplitBytes {
  static constexpr float kPeak = 127.0f * 256.0f;

  // The larger of both halves of `peak` and the magnitudes of 8 elements, as bits: they order as
  // the numbers do, with NaN above all.
  VQ_DEVICE static u32 peak_bits(u32 peak, const U32x4& octet) {
    VQ_UNROLL
    for (int w = 0; w < 4; ++w) peak = larger_halves(peak, word_of(octet, w) & 0x7fff7fffu);
    return peak;
  }
  // The peak over all lanes.
  VQ_DEVICE static u32 peak_of_warp(u32 peak) {
    return largest_of_warp(larger_halves(peak, peak >> 16) & 0xffffu);
  }
  // The peak as a number: NaN if an element is not finite.
  template <Element kElement>
  VQ_DEVICE static float peak(u32 bits) {
    const u32 low = bits & 0xffffu, high = bits >> 16;
    const u32 most = low > high ? low : high;
    constexpr u32 kInfinity = kElement == Element::f16 ? 0x7c00u : 0x7f80u;
    return most < kInfinity ? to_float<kElement>(static_cast<u16>(most))
                            : float_from_bits(0x7fc00000u);
  }

  // Factors to and from integers. A row whose peak is below kLeast counts as zeros; its factor may
  // be NaN or infinite.
  VQ_DEVICE static float factor_of(float peak) {
    // Scales to [1, 2) first, where the reciprocal is a normal number.
    const u32 power = float_bits(peak) & 0x7f800000u;
    const float part = float_from_bits((float_bits(peak) & 0x007fffffu) | 0x3f800000u);
    constexpr int kPeakPower = 14;  // power of two of kPeak
    const float scaled = kPeak / (1 << kPeakPower) * reciprocal(part);
    const float to_peak = float_from_bits(((2 * 127u + kPeakPower) << 23) - power);
    return peak > kLeast ? scaled * to_peak : 0.0f;
  }
  VQ_DEVICE static float scale_of(float peak) { return peak * (1 / kPeak); }

  // The bytes of 8 elements times the factor, in their order.
  template <Element kElement>
  VQ_DEVICE static void split(u32 (&high)[2], u32 (&low)[2], const U32x4& octet, float factor) {
    VQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      u32 whole[4];  // the integer plus 128 in the low 16 bits: `high`, and `low` plus 128
      VQ_UNROLL
      for (int i = 0; i < 4; ++i) {
        const u32 pair = word_of(octet, half * 2 + i / 2);
        const auto bits = static_cast<u16>(i % 2 == 0 ? pair & 0xffffu : pair >> 16);
        whole[i] = float_bits(fused(to_float<kElement>(bits), factor, kWhole));
      }
      const u32 first = byte_permute(whole[0], whole[1], 0x5140u);  // low, low, high, high
      const u32 second = byte_permute(whole[2], whole[3], 0x5140u);
      low[half] = byte_permute(first, second, 0x5410u) ^ 0x80808080u;
      high[half] = byte_permute(first, second, 0x7632u);
    }
  }

 private:
  static constexpr float kLeast = 1e-30f;
  // 1.5 times 2^23: what is added to it within 2^22 is rounded to an integer in its last bits.
  static constexpr float kWhole = 12582912.0f + 128.0f;
};

}  // namespace vq
