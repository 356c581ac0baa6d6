// The query of a block as operand b of a product of bytes, for keys of int8 entries, whose bytes
// are operand a as they come from their lookup. Lanes, channels and columns as query_fragments.cuh
// has them in parts: column n is head n / 2 of a quad, part n % 2; an octet of channels is k of one
// product of m16n8k32, its first four at k = 4c.., the others at k = 16 + 4c.. .
//
// A head's row is scaled to kPeak at most and rounded to integers v = 128 high + low, high and low
// within a byte: about 15 bits of the largest magnitude, no coarser than what 16-bit elements leave
// of a score. Sums of integers are exact: 127 * 127 * head_dim times 128 is below 2^31 up to a
// head_dim of 1040.
#pragma once

#include <vq/layout/attention_fragments.h>

namespace vq {

template <class Plan>
class QueryBytes {
 public:
  static constexpr AttentionDecodeConfig kConfig = Plan::config();
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kHeads = kConfig.heads_per_block;
  static constexpr int kQuads = quad_heads(kConfig) / 4;
  static constexpr int kOctets = kHeadDim / 32;
  static constexpr int kProducts = kQuads;
  static constexpr float kPeak = 127.0f * 128.0f;
  using Sum = i32;
  static_assert(kHeadDim <= 1024, "");

  // `query`: rows by query_place() in shared memory, times factor(head) weight(channel).
  template <class Factor, class Weight>
  VQ_DEVICE void load(const float* query, Factor factor, Weight weight) {
    const bool second = lane() / 4 % 2 == 1;
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const int head = quad * 4 + lane() / 8;
      const bool inside = head < kHeads;
      const float scale = inside ? factor(head) : 0.0f;
      VQ_UNROLL
      for (int i = 0; i < 2 * kOctets; ++i) {
        const int channel = lane() % 4 * (kHeadDim / 4) + i * 4;
        const U32x4 four = load_shared(reinterpret_cast<const U32x4*>(
            query + query_place(kHeadDim, inside ? head : 0, channel)));
        const auto byte = [&](u32 bits, int j) {
          return part_of(float_from_bits(bits) * scale * weight(channel + j), second) << 8 * j;
        };
        words_[quad][i / 2][i % 2] =
            byte(four.x, 0) | byte(four.y, 1) | byte(four.z, 2) | byte(four.w, 3);
      }
    }
  }

  // sums += the products of octet o of the keys of pairs of tiles, as QueryFragments has them.
  template <int kTiles>
  VQ_DEVICE void multiply(i32 (&sums)[(kTiles + 1) / 2][kProducts][4],
                          const u32 (&octets)[kTiles][2], int o) const {
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; tile += 2) {
      const bool paired = tile + 1 < kTiles;
      const auto& other = octets[paired ? tile + 1 : tile];
      const u32 a[4] = {octets[tile][0], paired ? other[0] : 0u, octets[tile][1],
                        paired ? other[1] : 0u};
      VQ_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        mma_m16n8k32_s8(sums[tile / 2][quad], a, words_[quad][o]);
      }
    }
  }

  // The score of token g of a tile with head c of a quad, in lane (g, c).
  template <int kTiles>
  VQ_DEVICE static void take_scores(const i32 (&sums)[(kTiles + 1) / 2][kProducts][4],
                                    float (&scores)[kTiles][kQuads]) {
    VQ_UNROLL
    for (int i = 0; i < kTiles * kQuads; ++i) {
      const auto& of = sums[i / kQuads / 2][i % kQuads];
      const int first = i / kQuads % 2 * 2;
      scores[i / kQuads][i % kQuads] = static_cast<float>(of[first] * 128 + of[first + 1]);
    }
  }

 private:
  // The high or low byte of a number within kPeak, rounded. What is none comes of a row whose peak
  // is none, which makes none of the scores.
  VQ_DEVICE static u32 part_of(float value, bool second) {
    value = value > kPeak ? kPeak : value > -kPeak ? value : -kPeak;
    const i32 whole = static_cast<i32>(value < 0.0f ? value - 0.5f : value + 0.5f);
    const i32 high = (whole + 64) >> 7;  // 64: low is within -64 .. 63
    return static_cast<u32>(second ? whole - high * 128 : high) & 0xffu;
  }

  u32 words_[kQuads][kOctets][2];
};

}  // namespace vq
