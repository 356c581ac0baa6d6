// Converts a word of affine codes to MMA operand words (layout/format.h); x = zero + scale n.
//
// For keys the query takes a group's scales, and its product with the zeros is one number for all
// tokens (ops/group_query.cuh). The operands are then the n alone:
//
//   4 bits, f16    masked: n is the last bits of an f16 below 2^-14, which is n 2^-24, or 16 times
//                  that; in pairs of channels i and i + 4
//   8 bits, f16    as 4 bits, in pairs of channels i and i + 2
//   bf16           as the last bits of 128 + n, from which 128 is taken, or by way of floats
//
// For values the operand words are s (n - half) at half the numbers' scale, so that rounding is
// relative to the distance from the middle. One more MMA per tile sums half the scales and the
// zeros (ops/warp_softmax.cuh).
#pragma once

#include <vq/codebook/entry.cuh>
#include <vq/codebook/scalar_operands.cuh>

namespace vq {

// Channels i and i + 4 of 8 side by side; 8 bits i and i + 2 of 4.
template <int kApart>
struct PairsApart {
  VQ_HD static constexpr int channel(int i) {
    return i / (2 * kApart) * (2 * kApart) + i % (2 * kApart) / 2 + i % 2 * kApart;
  }
  VQ_HD static constexpr int place(int channel) {
    return channel / (2 * kApart) * (2 * kApart) + channel % kApart * 2 +
           channel % (2 * kApart) / kApart;
  }
};

//   kChannels, kWords, unpack, channel, place   as in ScalarOperand
//   kUnit         factor of entries where they are read
//   weight(i)     factor of the query's channel for element i of an octet
//   kOfSum        factor of the sum
template <Element kElement, int kVectorSize>
struct AffineKeys;

template <>
struct AffineKeys<Element::f16, 4> : PairsApart<4> {
  static constexpr int kChannels = 8;
  static constexpr int kWords = 4;
  static constexpr float kUnit = 1.0f;
  static constexpr float kOfSum = 16777216.0f;
  VQ_HD static constexpr float weight(int i) { return i / 2 % 2 == 0 ? 1.0f : 1.0f / 16.0f; }
  VQ_DEVICE static void unpack(u32* words, u32 codes) {
    words[0] = codes & 0x000f000fu;
    words[1] = codes & 0x00f000f0u;
    words[2] = codes >> 8 & 0x000f000fu;
    words[3] = codes >> 8 & 0x00f000f0u;
  }
};

template <>
struct AffineKeys<Element::f16, 2> : PairsApart<2> {
  static constexpr int kChannels = 4;
  static constexpr int kWords = 2;
  static constexpr float kUnit = 1.0f;
  static constexpr float kOfSum = 16777216.0f;
  VQ_HD static constexpr float weight(int) { return 1.0f; }
  VQ_DEVICE static void unpack(u32* words, u32 codes) {
    words[0] = codes & 0x00ff00ffu;
    words[1] = codes >> 8 & 0x00ff00ffu;
  }
};

template <>
struct AffineKeys<Element::bf16, 4> : PairsApart<4> {
  static constexpr int kChannels = 8;
  static constexpr int kWords = 4;
  static constexpr float kUnit = 1.0f;
  static constexpr float kOfSum = 1.0f;
  VQ_HD static constexpr float weight(int) { return 1.0f; }
  VQ_DEVICE static void unpack(u32* words, u32 codes) {
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      const u32 raised = masked_or(codes >> 4 * i, 0x000f000fu, 0x43004300u);
      words[i] = add2<Element::bf16>(raised, 0xc300c300u);  // -128, twice
    }
  }
};

template <>
struct AffineKeys<Element::bf16, 2> : InOrder {
  static constexpr int kChannels = 4;
  static constexpr int kWords = 2;
  static constexpr float kUnit = 1.0f;
  static constexpr float kOfSum = 1.0f;
  VQ_HD static constexpr float weight(int) { return 1.0f; }
  VQ_DEVICE static void unpack(u32* words, u32 codes) {
    const U32x2 pairs = elements_of_bytes<Element::bf16>(codes ^ 0x80808080u);  // n - 128
    words[0] = add2<Element::bf16>(pairs.x, 0x43004300u);
    words[1] = add2<Element::bf16>(pairs.y, 0x43004300u);
  }
};

//   kHalf           as above
//   scaled          makes the operand words of a word of codes; `scale` in both halves
template <Element kElement, int kVectorSize>
struct AffineValues;

template <Element kElement>
struct AffineValues<kElement, 4> : PairsApart<4> {
  static constexpr int kChannels = 8;
  static constexpr int kWords = 4;
  static constexpr float kUnit = 1.0f;
  static constexpr float kHalf = 8.0f;
  VQ_DEVICE static void scaled(u32* words, u32 codes, u32 scale) {
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      words[i] = fused2<kElement>(number(codes, i), scale, 0x80008000u);
    }
  }

 private:
  // Channels i and i + 4 less kHalf.
  VQ_DEVICE static u32 number(u32 codes, int i) {
    if constexpr (kElement == Element::bf16) {
      const u32 raised = masked_or(codes >> 4 * i, 0x000f000fu, 0x43004300u);
      return add2<kElement>(raised, 0xc308c308u);  // -(128 + 8), twice
    }
    const u32 shifted = codes >> i / 2 * 8;
    if (i % 2 == 0) {
      return add2<kElement>(masked_or(shifted, 0x000f000fu, 0x64006400u),
                            0xe408e408u);  // -(1024 + 8)
    }
    // 1024 + 16 n, of which 1/16 is 64 + n
    return fused2<kElement>(masked_or(shifted, 0x00f000f0u, 0x64006400u), 0x2c002c00u, 0xd480d480u);
  }
};

template <Element kElement>
struct AffineValues<kElement, 2> : InOrder {
  static constexpr int kChannels = 4;
  static constexpr int kWords = 2;
  static constexpr float kUnit = 1.0f;
  static constexpr float kHalf = 128.0f;
  VQ_DEVICE static void scaled(u32* words, u32 codes, u32 scale) {
    const U32x2 pairs = elements_of_bytes<kElement>(codes ^ 0x80808080u);
    words[0] = fused2<kElement>(pairs.x, scale, 0x80008000u);
    words[1] = fused2<kElement>(pairs.y, scale, 0x80008000u);
  }
};

// The operand of scalar codes, whichever they are.
template <Decoder kDecoder, Element kElement, int kVectorSize, bool kBytes>
using KeyOperand = Either<kDecoder == Decoder::affine, AffineKeys<kElement, kVectorSize>,
                          ScalarOperand<kDecoder, kVectorSize, kBytes>>;
template <Decoder kDecoder, Element kElement, int kVectorSize>
using ValueOperand = Either<kDecoder == Decoder::affine, AffineValues<kElement, kVectorSize>,
                            ScalarOperand<kDecoder, kVectorSize, false>>;

}  // namespace vq
