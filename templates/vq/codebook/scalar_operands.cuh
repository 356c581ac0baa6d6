// Converts a word of scalar codes to MMA operand words: the numbers alone, whose scales go to the
// other operand or to the sum (layout/format.h).
//
//   int8 as bytes        the word itself
//   int4 as bytes        each number times 16, so that its sign is the byte's: even channels in the
//                        first word, odd ones in the second
//   int8, int4 as f16    a number with its top bit turned is the last bits of an f16 that is 1024
//                        and its range more; int4 in pairs of channels i and i + 4
//   e4m3 as f16          the bits of a float are those of an f16 that is 2^8 times less
#pragma once

#include <vq/codebook/entry.cuh>

namespace vq {

// For each decoder:
//   kChannels        channels per word of codes
//   kWords           operand words per word of codes
//   kUnit            value of 1 in an operand word
//   unpack           makes the operand words
//   channel(i)       the word's channel that is element i
//   place(channel)   the element that holds that channel
template <Decoder kDecoder, int kVectorSize, bool kBytes>
struct ScalarOperand;

struct InOrder {
  VQ_HD static constexpr int channel(int i) { return i; }
  VQ_HD static constexpr int place(int channel) { return channel; }
};

template <>
struct ScalarOperand<Decoder::scalar, 2, true> : InOrder {
  static constexpr int kChannels = 4;
  static constexpr int kWords = 1;
  static constexpr float kUnit = 1.0f;
  VQ_DEVICE static void unpack(u32* words, u32 codes) { words[0] = codes; }
};

template <>
struct ScalarOperand<Decoder::scalar, 2, false> : InOrder {
  static constexpr int kChannels = 4;
  static constexpr int kWords = 2;
  static constexpr float kUnit = 1.0f;
  VQ_DEVICE static void unpack(u32* words, u32 codes) {
    const U32x2 pairs = elements_of_bytes<Element::f16>(codes);
    words[0] = pairs.x, words[1] = pairs.y;
  }
};

template <>
struct ScalarOperand<Decoder::scalar, 4, true> {
  static constexpr int kChannels = 8;
  static constexpr int kWords = 2;
  static constexpr float kUnit = 1.0f / 16.0f;
  VQ_DEVICE static void unpack(u32* words, u32 codes) {
    words[0] = codes << 4 & 0xf0f0f0f0u;
    words[1] = codes & 0xf0f0f0f0u;
  }
  VQ_HD static constexpr int channel(int i) { return i % 4 * 2 + i / 4; }
  VQ_HD static constexpr int place(int channel) { return channel % 2 * 4 + channel / 2; }
};

template <>
struct ScalarOperand<Decoder::scalar, 4, false> {
  static constexpr int kChannels = 8;
  static constexpr int kWords = 4;
  static constexpr float kUnit = 1.0f;
  VQ_DEVICE static void unpack(u32* words, u32 codes) {
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      const u32 raised = (codes >> 4 * i & 0x000f000fu) ^ 0x64086408u;
      words[i] = add2<Element::f16>(raised, 0xe408e408u);  // -(1024 + 8), twice
    }
  }
  VQ_HD static constexpr int channel(int i) { return i / 2 + i % 2 * 4; }
  VQ_HD static constexpr int place(int channel) { return channel % 4 * 2 + channel / 4; }
};

template <int kVectorSize>
struct ScalarOperand<Decoder::e4m3, kVectorSize, false> : InOrder {
  static constexpr int kChannels = 4;
  static constexpr int kWords = 2;
  static constexpr float kUnit = 256.0f;
  VQ_DEVICE static void unpack(u32* words, u32 codes) {
    VQ_UNROLL
    for (int i = 0; i < 2; ++i) {
      const u32 tops = byte_permute(codes, 0u, i == 0 ? 0x1404u : 0x3424u);
      words[i] = (tops & 0x80008000u) | (tops & 0x7f007f00u) >> 1;
    }
  }
};

}  // namespace vq
