// The query as operand b of byte MMAs, for keys with int8 entries, whose bytes are operand a as
// they come from the lookup. Lanes, channels and columns are as in query_fragments.cuh in parts:
// column n is head n / 2 of a quad, part n % 2; an octet of channels is k of one m16n8k32, its
// first four at k = 4c.., the others at k = 16 + 4c.. .
//
// A head's row is scaled to kPeak at most and rounded to integers v = 128 high + low, with high and
// low in a byte: about 15 bits of the largest magnitude, no coarser than 16-bit elements. Integer
// sums are exact: 128 * 127 * 128 + 128 * 64 per channel and stage stays below 2^31 up to 1028 of
// them.
#pragma once

#include <vq/codebook/entry.cuh>
#include <vq/ops/query_fragments.cuh>

namespace vq {

// Octets of a row in their order. Order says channel(i): which channel of an octet element i of its
// operand words is.
template <class Order>
struct OctetsInOrder {
  // The channel of element j of word `word` of a quarter with so many.
  VQ_DEVICE static int channel(int quarter, int words, int word, int j) {
    const int i = quarter * words + word;
    return i / 2 * 8 + Order::channel(i % 2 * 4 + j);
  }
};

// Row says channel() as OctetsInOrder does.
template <class Plan, class Row>
class QueryBytes : public QueryOperand<Plan, 2, 2> {
  using Base = QueryOperand<Plan, 2, 2>;

 public:
  using Base::kOctetWords;
  using Octet = typename Base::Octet;
  using Base::kProducts;
  using Base::kQuads;
  using Base::kQuarter;
  static constexpr float kPeak = 127.0f * 128.0f;
  using Sum = i32;
  static_assert(Plan::config().head_dim * Plan::config().keys.num_codebooks <= 1024, "");

  // QueryFragments::prepare() for bytes.
  template <class Weight>
  VQ_DEVICE static void prepare(u32* words, int head, const float* row, float factor,
                                Weight weight) {
    for (int i = lane(); i < 4 * kQuarter; i += 32) {
      u32 high = 0, low = 0;
      VQ_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int channel = Row::channel(i / kQuarter, kQuarter, i % kQuarter, j);
        // NaN comes only from a row whose peak is NaN, and scores do not use it.
        const i32 whole =
            nearest_within(Base::channel_of(row, channel) * factor * weight(channel), kPeak);
        const i32 first = (whole + 64) >> 7;  // 64: the second is within -64 .. 63
        high |= (static_cast<u32>(first) & 0xffu) << 8 * j;
        low |= (static_cast<u32>(whole - first * 128) & 0xffu) << 8 * j;
      }
      u32* const to =
          words + query_word(kQuarter, kOctetWords, head * 2, i / kQuarter, i % kQuarter);
      store_shared(to, high);
      store_shared(to + query_word(kQuarter, kOctetWords, 1, 0, 0), low);
    }
  }

  // sums += the products of octet `of` of the keys of pairs of tiles, as QueryFragments has them.
  template <int kTiles>
  VQ_DEVICE void multiply(i32 (&sums)[(kTiles + 1) / 2][kProducts][4],
                          const u32 (&octets)[kTiles][2], const Octet& query_octet) const {
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; tile += 2) {
      u32 a[4];
      pair_tiles(a, octets, tile, 0);
      VQ_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        mma_m16n8k32_s8(sums[tile / 2][quad], a, query_octet.words[quad]);
      }
    }
  }

  // The score of token g of a tile with head c of a quad, in lane (g, c).
  template <int kTiles>
  VQ_DEVICE static void take_scores(const i32 (&sums)[(kTiles + 1) / 2][kProducts][4],
                                    float (&scores)[kTiles][kQuads]) {
    VQ_UNROLL
    for (int i = 0; i < kTiles * kQuads; ++i) {
      const auto& products = sums[i / kQuads / 2][i % kQuads];
      const int first = i / kQuads % 2 * 2;
      scores[i / kQuads][i % kQuads] =
          static_cast<float>(products[first] * 128 + products[first + 1]);
    }
  }
};

}  // namespace vq
