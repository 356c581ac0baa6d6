// The query as the tensor core's operand b. Lane (g, c) holds the channels [c s / 4, (c + 1) s / 4)
// of its column, where s is head_dim, or the next multiple of 32 with zeros behind the row. Columns
// n of an MMA:
//
//   in parts   head n / 2 of a quad of four, part n % 2: c0 + c1 is the score of head c
//   whole      of a pair of quads head n / 2 of quad n % 2, where there are pairs: c0 is the
//              score of head c of the first, c1 of the second; else as in parts, with zeros for
//              the second
//
// The order of channels is free: words w0..w3 of a key octet, as they come from the lookup, are k
// of two MMAs, w0 and w1 of the first; rows g and g + 8 are the same octet of two tokens
// (attention_mma.cuh).
//
// A raw query is exact in 16 bits and kept whole. A transformed or scaled one is not, and scores
// may be large: it is scaled to 128 at most and split in two parts, the second being the first's
// rounding error.
#pragma once

#include <vq/layout/query_words.h>
#include <vq/codebook/scalar_operands.cuh>
#include <vq/lanes/fragment_lanes.cuh>
#include <vq/ops/attention_work.cuh>

namespace vq {

// The largest magnitude of a head's row of the query (QueryRows) times weight(channel), NaN where
// one is, 1 where all are zeros. All lanes of the warp get it.
template <int kOfLane, class Weight>
VQ_DEVICE float peak_of_row(const float (&row)[kOfLane], Weight weight) {
  float peak = 0.0f;
  VQ_UNROLL
  for (int j = 0; j < kOfLane; ++j) {
    const float value = row[j] * weight(lane() + 32 * j);
    const float magnitude = value < 0.0f ? -value : value;
    peak = magnitude <= peak || peak != peak ? peak : magnitude;
  }
  VQ_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    const float other = shuffle_xor(peak, mask);
    peak = other <= peak || peak != peak ? peak : other;
  }
  return peak == 0.0f ? 1.0f : peak;
}

// The operand words of an octet of a quarter of a row, zeros where the lane's column has none.
template <int kWords>
VQ_DEVICE void load_octet(u32 (&to)[kWords], const u32* words, bool inside) {
  using Words = EntryWords<2 * kWords>;
  const Words loaded = load_shared(reinterpret_cast<const Words*>(words));
  VQ_UNROLL
  for (int i = 0; i < kWords; ++i) to[i] = inside ? word_of(loaded, i) : 0u;
}

// Words i and i + 1 of an octet of the keys of a pair of tiles from `tile` on, as operand a. The
// lone last tile of an odd number is paired with zeros.
template <int kTiles, int kWords>
VQ_DEVICE void pair_tiles(u32 (&a)[4], const u32 (&octets)[kTiles][kWords], int tile, int i) {
  const bool paired = tile + 1 < kTiles;
  const auto& other = octets[paired ? tile + 1 : tile];
  a[0] = octets[tile][i], a[1] = paired ? other[i] : 0u;
  a[2] = octets[tile][i + 1], a[3] = paired ? other[i + 1] : 0u;
}

// Common part of both query forms: operand words, kOctetWords per octet, in kParts parts, 1 or 2.
// They may be in registers unless kNear is false.
template <class Plan, int kParts, int kOctet, bool kNear = true>
class QueryOperand {
 public:
  static constexpr int kOctetWords = kOctet;
  static constexpr auto kConfig = Plan::config();
  static constexpr int kQuads = quad_heads(kConfig) / 4;
  static constexpr int kOctets = query_span(kConfig.head_dim) / 32;
  static constexpr bool kPaired = kParts == 1 && kQuads % 2 == 0;
  static constexpr int kProducts = kPaired ? kQuads / 2 : kQuads;
  static constexpr int kQuarter = quarter_words(kConfig.head_dim) * kOctetWords / 4;
  // Row of operand words of a head's part. If lanes write two heads at a time, the heads are in
  // different banks, and so are the parts of a head, which lanes read together.
  VQ_HD static constexpr int row_of(int head, int part) {
    return head * kParts + (kNear ? part : (part + head) % kParts);
  }

  // With bytes, 16 heads of 128 channels fit in registers too if values are not scalar: 8 warps
  // have them free, and a step needs fewer shared-memory loads.
  static constexpr bool kMany = kQuads > 2 && kOctet == 2 && kConfig.keys.int8_entries &&
                                !is_scalar(kConfig.values.decoder) &&
                                kProducts * kOctets * kOctet <= 32;

  // `words`: what prepare() has stored, of all heads.
  VQ_DEVICE void load(const u32* words) {
    rows_ = words;
    if constexpr (kHeld) {
      VQ_UNROLL
      for (int i = 0; i < kProducts * kOctets; ++i) {
        read_octet(words, words_[i / kOctets][i % kOctets], i / kOctets, i % kOctets);
      }
    }
  }

  // Channel `channel` of a head's row, zero past its end.
  VQ_DEVICE static float channel_of(const float* row, int channel) {
    if (kConfig.head_dim % 32 != 0 && channel >= kConfig.head_dim) return 0.0f;
    return load_shared(row + channel);
  }

  // Operand words of an octet for all MMAs. Those of few heads are in registers; those of more are
  // in shared memory, read ahead of their use.
  struct Octet {
    u32 words[kProducts][kOctetWords];
  };
  VQ_DEVICE void read(Octet& to, int octet) const {
    VQ_UNROLL
    for (int product = 0; product < kProducts; ++product) {
      if constexpr (kHeld) {
        VQ_UNROLL
        for (int i = 0; i < kOctetWords; ++i) to.words[product][i] = words_[product][octet][i];
      } else {
        read_octet(rows_, to.words[product], product, octet);
      }
    }
  }
  // read() from rows at `words`.
  VQ_DEVICE static void read_from(const u32* words, Octet& to, int octet) {
    VQ_UNROLL
    for (int product = 0; product < kProducts; ++product) {
      read_octet(words, to.words[product], product, octet);
    }
  }

 private:
  static constexpr bool kHeld = kNear && (kQuads <= 2 || kMany);

  VQ_DEVICE static void read_octet(const u32* words, u32 (&to)[kOctetWords], int product,
                                   int octet) {
    const int second = lane_group() % 2;
    const int quad = kPaired ? product * 2 + second : product;
    const int head = quad * 4 + group_pair();
    constexpr bool kAll = kConfig.heads_per_block % 4 == 0 && (kParts == 2 || kPaired);
    const bool inside =
        kAll || (head < kConfig.heads_per_block && (kParts == 2 || kPaired || second == 0));
    const int part = kParts == 2 ? second : 0;
    const int row = inside ? row_of(head, part) : 0;
    load_octet(
        to, words + query_word(kQuarter, kOctetWords, row, place_in_group(), octet * kOctetWords),
        inside);
  }

  const u32* rows_;
  u32 words_[kHeld ? kProducts : 1][kOctets][kOctetWords];
};

// Order says channel(i): which channel of an octet element i of its operand words is.
template <class Plan, int kParts, Element kElement = Plan::config().element, class Order = InOrder,
          bool kNear = true>
class QueryFragments : public QueryOperand<Plan, kParts, 4, kNear> {
  using Base = QueryOperand<Plan, kParts, 4, kNear>;
  using Base::kConfig;

 public:
  using Base::kOctetWords;
  using Octet = typename Base::Octet;
  using Base::kPaired;
  using Base::kProducts;
  using Base::kQuads;
  using Base::kQuarter;
  static constexpr float kPeak = 128.0f;  // the largest magnitude that is parted
  using Sum = float;

  // One warp makes the operand words of head number `head` of its row of the query in shared
  // memory, times factor weight(channel); load() reads them, after a barrier.
  template <class Weight>
  VQ_DEVICE static void prepare(u32* words, int head, const float* row, float factor,
                                Weight weight) {
    for (int i = lane(); i < 4 * kQuarter; i += 32) {
      float low, high;
      if constexpr (Order::channel(1) == 1 && kConfig.head_dim % 32 == 0) {
        const U32x2 two = load_shared(reinterpret_cast<const U32x2*>(row) + i);
        low = float_from_bits(two.x) * factor * weight(2 * i);
        high = float_from_bits(two.y) * factor * weight(2 * i + 1);
      } else {
        const int first = i / 4 * 8 + Order::channel(i % 4 * 2);
        const int second = i / 4 * 8 + Order::channel(i % 4 * 2 + 1);
        low = Base::channel_of(row, first) * factor * weight(first);
        high = Base::channel_of(row, second) * factor * weight(second);
      }
      const u32 first = pack2<kElement>(low, high);
      u32* const to = words + query_word(kQuarter, kOctetWords, Base::row_of(head, 0), i / kQuarter,
                                         i % kQuarter);
      store_shared(to, first);
      if constexpr (kParts == 2) {
        const float low_left = low - to_float<kElement>(static_cast<u16>(first & 0xffffu));
        const float high_left = high - to_float<kElement>(static_cast<u16>(first >> 16));
        const int further = Base::row_of(head, 1) - Base::row_of(head, 0);
        store_shared(to + query_word(kQuarter, kOctetWords, further, 0, 0),
                     pack2<kElement>(low_left, high_left));
      }
    }
  }

  // Adds the products of the keys' octet `octet` in pairs of tiles of 8 tokens with all heads: c0
  // and c1 are the first tile's, c2 and c3 the second's.
  template <int kTiles>
  VQ_DEVICE static void multiply(float (&sums)[(kTiles + 1) / 2][kProducts][4],
                                 const u32 (&octets)[kTiles][4], const Octet& query_octet) {
    VQ_UNROLL
    for (int i = 0; i < 4; i += 2) {
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; tile += 2) {
        u32 a[4];
        pair_tiles(a, octets, tile, i);
        VQ_UNROLL
        for (int product = 0; product < kProducts; ++product) {
          const u32 b[2] = {query_octet.words[product][i], query_octet.words[product][i + 1]};
          mma_m16n8k16<kElement>(sums[tile / 2][product], a, b);
        }
      }
    }
  }

  // The score of token g of a tile with head c of a quad, in lane (g, c).
  template <int kTiles>
  VQ_DEVICE static void take_scores(const float (&sums)[(kTiles + 1) / 2][kProducts][4],
                                    float (&scores)[kTiles][kQuads]) {
    VQ_UNROLL
    for (int i = 0; i < kTiles * kQuads; ++i) {
      const int tile = i / kQuads;
      const int quad = i % kQuads;
      const auto& products = sums[tile / 2][kPaired ? quad / 2 : quad];
      const int first = tile % 2 * 2;
      scores[tile][quad] =
          kPaired ? products[first + quad % 2] : products[first] + products[first + 1];
    }
  }
};

}  // namespace vq
