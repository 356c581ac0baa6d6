// The query of a block as the tensor core's operand b, for four heads a product (a quad):
//
//   column n = (head n / 2 of the quad, half n % 2); lane (g, c) = (lane / 4, lane % 4) holds, of
//   octet o of its channels [c head_dim / 4, (c + 1) head_dim / 4), those of its column's half:
//   channels 2 half + {0, 1} and 4 + 2 half + {0, 1}
//
// which is how the entries of a key come from their lookup (attention_fragments.cuh). A raw query
// is exact in 16 bits. A transformed one is not, and scores may be large: it is scaled to 128 at
// most and parted in two, the second what the first's rounding left.
#pragma once

#include <vq/layout/attention_fragments.h>
#include <vq/ops/attention_work.cuh>

namespace vq {

// peaks[head] = the largest magnitude of the block's query [heads_per_block][head_dim], 1 where it
// is all zeros. All threads; ends with a barrier.
template <class Plan>
VQ_DEVICE void find_peaks(const float* query, float* peaks) {
  constexpr AttentionDecodeConfig kConfig = Plan::config();
  for (int head = warp(); head < kConfig.heads_per_block; head += kConfig.threads / 32) {
    float peak = 0.0f;
    for (int i = lane(); i < kConfig.head_dim; i += 32) {
      const float value = load_shared(query + head * kConfig.head_dim + i);
      peak = value > peak ? value : -value > peak ? -value : peak;
    }
    VQ_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
      const float other = shuffle_xor(peak, mask);
      peak = other > peak ? other : peak;
    }
    if (lane() == 0) store_shared(peaks + head, peak > 0.0f ? peak : 1.0f);
  }
  sync_block();
}

template <class Plan, int kParts>
class QueryFragments {
 public:
  static constexpr AttentionDecodeConfig kConfig = Plan::config();
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kHeads = kConfig.heads_per_block;
  static constexpr int kQuads = quad_heads(kConfig) / 4;
  static constexpr int kOctets = kHeadDim / 32;

  // `query` [heads_per_block][head_dim] fp32 in shared memory; each head times factor(head).
  template <class Factor>
  VQ_DEVICE void load(const float* query, Factor factor) {
    const int half = lane() / 4 % 2;
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const int head = quad * 4 + lane() / 8;
      const bool inside = head < kHeads;
      const float* row = query + (inside ? head : 0) * kHeadDim + lane() % 4 * (kHeadDim / 4);
      const float scale = inside ? factor(head) : 0.0f;
      VQ_UNROLL
      for (int i = 0; i < 2 * kOctets; ++i) {
        const float* pair = row + i * 4 + 2 * half;
        float low = load_shared(pair) * scale;
        float high = load_shared(pair + 1) * scale;
        VQ_UNROLL
        for (int part = 0; part < kParts; ++part) {
          const u32 rounded = pack2<kConfig.element>(low, high);
          words_[quad][part][i / 2][i % 2] = rounded;
          low -= to_float<kConfig.element>(static_cast<u16>(rounded & 0xffffu));
          high -= to_float<kConfig.element>(static_cast<u16>(rounded >> 16));
        }
      }
    }
  }

  // sums += the products of octet o of the keys, of each tile of 8 tokens, with all heads.
  template <int kTiles>
  VQ_DEVICE void multiply(float (&sums)[kTiles][kQuads][4], const u32 (&octets)[kTiles][4],
                          int o) const {
    VQ_UNROLL
    for (int part = 0; part < kParts; ++part) {
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        VQ_UNROLL
        for (int quad = 0; quad < kQuads; ++quad) {
          mma_m16n8k16<kConfig.element>(sums[tile][quad], octets[tile], words_[quad][part][o]);
        }
      }
    }
  }

 private:
  u32 words_[kQuads][kParts][kOctets][2];
};

}  // namespace vq
