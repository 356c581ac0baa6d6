// The running softmax of one warp and its weighted sum of values, by tensor core: lane (g, c)
// holds the score of token g of a tile of 8 with head c of each quad of heads,
// and of that head's output the channels [g kValues, (g + 1) kValues), kValues of them value_dim /
// 8 or, where these are no whole sub-vectors, more (value_lanes).
//
//   a   a word of two channels of a token is a pair along k, k = (token, channel's parity): words
//       2j and 2j + 1 of tokens 2c and 2c + 1 are product j, rows g and g + 8
//   b   columns are 4 heads times parity: p(token, head) in the half of its parity, 0 in the other
//   c   so c0..c3 are 4 consecutive channels of head c, and rescaling needs no shuffle
//
// Of several query tokens, quads may go in pairs, whose columns are heads alone:
//
//   a   k are the tokens of two tiles: of word w of tokens 2c and 2c + 1 the first channels are row
//       g, the second ones row g + 8, which takes a permutation of each word
//   b   columns are head g / 2 of quad g % 2
//   c   so c0 and c2 are two consecutive channels of head c of the first quad, c1 and c3 of the
//       second: half the products
//
// With scalar values k is made of numbers in f16, in the order that they come in, and channels get
// their scales at the end of what is read from codes. Where tokens have scales, scores have their
// logarithms besides until then, so that probabilities of 16 bits are relative to the largest
// product; the sum of probabilities is taken without. Values of affine codes come with their
// scales, from the middle of the numbers on. Scales and zeros are a product of their own, of row g
// the word of each token for this lane's channels, whose sums are two more channels: by the first
// what is missing to the middle, and the second as it is, belong to each channel.
//
// movmatrix turns the probabilities of lane (token g, head c) into those of lane (head g / 2,
// tokens 2c and 2c + 1). The maximum follows only when a score exceeds it by more than kSlack: sums
// in fp32 and probabilities in 16 bits have the room.
#pragma once

#include <vq/kernels/attention_mma/plan.h>
#include <vq/codebook/affine_operands.cuh>
#include <vq/lanes/fragment_lanes.cuh>
#include <vq/ops/attention_work.cuh>

namespace vq {

template <class Plan>
class WarpSoftmax {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.values;
  using Scalars = ValueOperand<kFormat.decoder, kConfig.element, kFormat.vector_size>;
  using Order = Either<is_scalar(kFormat.decoder), Scalars, InOrder>;
  static constexpr int kTiles = kConfig.step_tokens / 8;
  static constexpr int kQuads = quad_heads(kConfig) / 4;
  static constexpr int kLanes = value_lanes(kConfig);         // that share a row of values
  static constexpr int kValues = kConfig.value_dim / kLanes;  // channels per lane
  static constexpr int kProducts = kValues / 4;               // MMAs per tile
  static_assert(kValues % 4 == 0, "");
  static constexpr bool kZeros = kFormat.decoder == Decoder::affine;
  static constexpr float kSlack = 8.0f;       // in units of log2
  static constexpr float kLowest = -1.0e30f;  // below all scores, and finite
  static constexpr int kJoined = joined_tiles(kConfig);
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kHeads = kQuads * 4;
  static constexpr AttentionMmaShared kAt = fragments_layout(kConfig);
  static constexpr bool kPaired = pairs_quads(kConfig);

  VQ_DEVICE WarpSoftmax() {
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      maximum_[quad] = kLowest;
      sum_[quad] = 0.0f;
      largest_scale_[quad] = kLowest;
      VQ_UNROLL
      for (int i = 0; i < kSums; ++i) output(quad, i) = 0.0f;
    }
  }

  // The share of a value row that this lane has.
  VQ_DEVICE static int share() {
    return kLanes == 8 || lane_group() < kLanes ? lane_group() : kLanes - 1;
  }

  // The token that is row `row` of a tile of the step from `base` on.
  VQ_DEVICE static int token_of(int base, int tile, int row) {
    return base + tile / kJoined * (8 * kJoined) + row * kJoined + tile % kJoined;
  }

  // Scales of the tokens in row g of each tile.
  struct Scales {
    float logarithm[kTiles];  // base 2
    float inverse[kTiles];
  };
  // Scales of the lane's tokens 2c and 2c + 1 of each tile; scale(tile, i) returns their bits.
  template <class Scale>
  VQ_DEVICE static Scales scales_of(Scale scale) {
    Scales scales;
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int odd = lane_group() % 2;
      const u32 mine = odd == 1 ? scale(tile, 1) : scale(tile, 0);
      const float own = float_from_bits(shuffle(mine, odd * kGroupLanes + group_pair()));
      scales.logarithm[tile] = log2_approx(own);
      // Tokens that do not count may have any bits; a NaN here must not reach others, so it becomes
      // 0.
      const float inverse = exp2_approx(-scales.logarithm[tile]);
      scales.inverse[tile] = inverse < infinity() ? inverse : 0.0f;
    }
    return scales;
  }

  // Tokens that count for all query tokens of a block.
  struct Common {
    int begin, end;
  };
  // Turns scores times scale[quad], in units of log2, of tokens from `base` on into probabilities
  // relative to the warp's maximum. They are 0 outside [first, end), and where counts(query token,
  // token) is false; tokens within `common` count for all. kScaled multiplies by `scales`.
  template <bool kScaled, class Counts>
  VQ_DEVICE void to_probabilities(float (&scores)[kTiles][kQuads], const float (&scale)[kQuads],
                                  int base, int first, int end, Common common, Counts counts,
                                  const Scales& scales) {
    VQ_UNROLL
    for (int i = 0; i < kTiles * kQuads; ++i) {
      float& score = scores[i / kQuads][i % kQuads];
      score *= scale[i % kQuads];
      if constexpr (kScaled) score += scales.logarithm[i / kQuads];
    }
    if constexpr (!masks_tokens(kConfig)) common = {first, end};
    const bool before = base < first || (sees_part(kConfig) && base < common.begin);
    if (before || base + 8 * kTiles > (end < common.end ? end : common.end))
      mask(scores, base, first, end, counts);
    bool above = false;
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const float largest = largest_of(scores, quad, kLowest);  // of all, without branches
      above = above || largest > maximum_[quad] + kSlack;
    }
    if (any_of_warp(above)) raise_maximum(scores);
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      VQ_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        float& score = scores[tile][quad];
        if constexpr (kScaled) {
          if (score > kLowest) {
            largest_scale_[quad] = larger(largest_scale_[quad], scales.logarithm[tile]);
          }
        }
        score = exp2_approx(score - maximum_[quad]);
        sum_[quad] += kScaled ? score * scales.inverse[tile] : score;
      }
    }
  }

  // Multiplies what has been summed of the values by `scale`.
  VQ_DEVICE void scale_outputs(float scale) {
    VQ_UNROLL
    for (int i = 0; i < kValues * kQuads; ++i) output(i % kQuads, i / kQuads) *= scale;
  }
  // Once all tokens that are read from scalar codes are in: channels take their scales,
  // scale(channel) for each of this lane's, and the maximum, which had scales of tokens in it, is
  // one of scores again, about: what raw tokens come to is small or large by their scores alone.
  template <class Scale>
  VQ_DEVICE void end_scalars(Scale scale) {
    float factor[kQuads];
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      factor[quad] = 1.0f;
      if constexpr (scaled_probabilities(kFormat)) {
        float largest = largest_scale_[quad];
        VQ_UNROLL
        for (int mask = 4; mask < 32; mask *= 2) {
          largest = larger(largest, shuffle_xor(largest, mask));
        }
        largest = largest > kLowest ? largest : 0.0f;  // no token
        factor[quad] = exp2_approx(largest);
        maximum_[quad] -= largest;
        sum_[quad] *= factor[quad];
      }
    }
    VQ_UNROLL
    for (int i = 0; i < kValues; ++i) {
      const float own = scale(lane_group() * kValues + i / 8 * 8 + Order::channel(i % 8));
      VQ_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        if constexpr (kZeros) {
          const float middle = fused(output(quad, kValues), Scalars::kHalf, output(quad, i));
          output(quad, i) = fused(middle, own, output(quad, kValues + 1));
        } else {
          output(quad, i) *= factor[quad] * own;
        }
      }
    }
  }

  // Permutes this lane's words from memory order to the order of scalar values.
  VQ_DEVICE static void arrange(u32 (&words)[kValues / 2]) {
    if constexpr (Order::channel(1) != 1) {
      VQ_UNROLL
      for (int octet = 0; octet < kValues / 2; octet += 4) {
        const u32 from[4] = {words[octet], words[octet + 1], words[octet + 2], words[octet + 3]};
        VQ_UNROLL
        for (int i = 0; i < 4; ++i) {  // channels i and i + 4
          words[octet + i] =
              byte_permute(from[i / 2], from[2 + i / 2], i % 2 == 0 ? 0x5410u : 0x7632u);
        }
      }
    }
  }

  // Operand b of a tile's probabilities, for each quad.
  template <Element kElement>
  VQ_DEVICE static void spread(u32 (&b)[kQuads][2], const float (&probabilities)[kQuads]) {
    const bool odd = lane_group() % 2 == 1;
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const u32 pair = movmatrix_trans(pack2<kElement>(probabilities[quad], probabilities[quad]));
      b[quad][0] = byte_permute(pair, 0u, odd ? 0x1044u : 0x4410u);
      b[quad][1] = byte_permute(pair, 0u, odd ? 0x3244u : 0x4432u);
    }
  }

  // Operand b of the probabilities of a pair of tiles, for each pair of quads.
  template <Element kElement>
  VQ_DEVICE static void spread_pairs(u32 (&b)[kQuads][2], const float (&probabilities)[kQuads],
                                     int tile) {
    VQ_UNROLL
    for (int pair = 0; pair < kQuads / 2; ++pair) {
      b[pair][tile % 2] =
          movmatrix_trans(pack2<kElement>(probabilities[2 * pair], probabilities[2 * pair + 1]));
    }
  }
  // Rows g and g + 8 of operand a, of a word of tokens 2c and 2c + 1.
  VQ_DEVICE static U32x2 rows_of(u32 even, u32 odd) {
    return {byte_permute(even, odd, 0x5410u), byte_permute(even, odd, 0x7632u)};
  }
  // Adds word `word` of this lane's channels, of a pair of tiles.
  template <Element kElement>
  VQ_DEVICE void add_pairs(int word, U32x2 first, U32x2 second, const u32 (&b)[kQuads][2]) {
    const u32 a[4] = {first.x, first.y, second.x, second.y};
    VQ_UNROLL
    for (int pair = 0; pair < kQuads / 2; ++pair) {
      mma_m16n8k16<kElement>(output_[pair * kWords + word], a, b[pair]);
    }
  }

  // Adds product j: words 2j and 2j + 1 of this lane's channels of tokens 2c and 2c + 1.
  template <Element kElement>
  VQ_DEVICE void add(int j, const u32 (&a)[4], const u32 (&b)[kQuads][2]) {
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      mma_m16n8k16<kElement>(output_[quad * kAll + j], a, b[quad]);
    }
  }
  // Adds the scale and zero words of affine values, for tokens 2c and 2c + 1 of a tile, or of its
  // pair. Rows g + 8 of a single tile are unused and may hold anything.
  VQ_DEVICE void add_zeros(const u32 (&words)[kTiles][2], int tile, const u32 (&b)[kQuads][2]) {
    const auto& tile_words = words[tile];
    const auto& other = words[kTiles == 1 ? tile : tile ^ 1];
    if constexpr (kPaired) {
      add_pairs<kConfig.element>(kValues / 2, rows_of(tile_words[0], tile_words[1]),
                                 rows_of(other[0], other[1]), b);
    } else {
      add<kConfig.element>(kProducts, {tile_words[0], other[0], tile_words[1], other[1]}, b);
    }
  }

  // Merges a block's warps in warp order through shared memory, after a barrier: sum [warp][head],
  // weighted [warp][head][channel + 4]. Calls each(head, channel, even, odd, maximum, sum) for
  // pairs of channels: maximum for channel 0 alone unless results have a sink logit, as sum unless
  // `whole` (no splits). All threads.
  template <class Each>
  VQ_DEVICE void merge(bool whole, Each each) const {
    if (lane() < kGroupLanes) {
      VQ_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        store_shared(warp_maximum(warp(), quad * 4 + lane()), maximum_[quad]);
      }
    }
    sync_block();  // the memory of the parts has been read, too
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const float weight = exp2_approx(maximum_[quad] - block_maximum(quad * 4 + place_in_group()));
      float total = sum_[quad] * weight;
      VQ_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) total += shuffle_xor(total, mask);
      if (lane() < kGroupLanes) store_shared(warp_sum(warp(), quad * 4 + lane()), total);
      const auto bits = [&](int channel) {
        return float_bits(output(quad, channel / 8 * 8 + Order::place(channel % 8)) * weight);
      };
      if (kLanes < 8 && lane_group() >= kLanes) continue;
      float* const to = weighted(warp(), quad * 4 + place_in_group()) + lane_group() * kValues;
      VQ_UNROLL
      for (int i = 0; i < kValues; i += 4) {
        store_shared(reinterpret_cast<U32x4*>(to + i),
                     U32x4{bits(i), bits(i + 1), bits(i + 2), bits(i + 3)});
      }
    }
    sync_block();
    constexpr int kPairs = kConfig.value_dim / 2;
    for (int i = thread_index(); i < kConfig.heads_per_block * kPairs; i += kConfig.threads) {
      const int head = i / kPairs;
      const int channel = i % kPairs * 2;
      float even = 0.0f;
      float odd = 0.0f;
      VQ_UNROLL
      for (int w = 0; w < kWarps; ++w) {
        const U32x2 two = load_shared(reinterpret_cast<const U32x2*>(weighted(w, head) + channel));
        even += float_from_bits(two.x);
        odd += float_from_bits(two.y);
      }
      const bool first = channel == 0;
      const bool highest = first || (AttentionSplits<Plan>::kSinkLogits && whole);
      each(head, channel, even, odd, highest ? block_maximum(head) : 0.0f,
           first || whole ? block_sum(head) : 0.0f);
    }
  }

 private:
  VQ_DEVICE static float* warp_maximum(int warp, int head) {
    return shared_part<float>(kAt.warp_maximum) + warp * kHeads + head;
  }
  VQ_DEVICE static float* warp_sum(int warp, int head) {
    return shared_part<float>(kAt.merge) + warp * kHeads + head;
  }
  VQ_DEVICE static float* weighted(int warp, int head) {
    return shared_part<float>(kAt.merge) + kWarps * kHeads +
           (warp * kHeads + head) * merge_stride(kConfig.value_dim);
  }

  VQ_DEVICE static float block_sum(int head) {
    float total = 0.0f;
    VQ_UNROLL
    for (int w = 0; w < kWarps; ++w) total += load_shared(warp_sum(w, head));
    return total;
  }
  VQ_DEVICE static float block_maximum(int head) {
    float highest = load_shared(warp_maximum(0, head));
    VQ_UNROLL
    for (int w = 1; w < kWarps; ++w) {
      highest = larger(highest, load_shared(warp_maximum(w, head)));
    }
    return highest;
  }

  // Scores of tokens that do not count become the lowest.
  template <class Counts>
  VQ_DEVICE static void mask(float (&scores)[kTiles][kQuads], int base, int first, int end,
                             Counts counts) {
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int token = token_of(base, tile, lane_group());
      const bool inside = token >= first && token < end;
      VQ_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        bool counted = inside;
        if constexpr (masks_tokens(kConfig)) {
          counted = inside && counts((quad * 4 + place_in_group()) / group(kConfig), token);
        }
        if (!counted) scores[tile][quad] = -infinity();
      }
    }
  }

  // The largest of a quad's scores and `least`.
  VQ_DEVICE static float largest_of(const float (&scores)[kTiles][kQuads], int quad, float least) {
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) least = larger(least, scores[tile][quad]);
    return least;
  }

  VQ_DEVICE void raise_maximum(const float (&scores)[kTiles][kQuads]) {
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      float highest = largest_of(scores, quad, maximum_[quad]);
      VQ_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) {
        highest = larger(highest, shuffle_xor(highest, mask));
      }
      // Each head decides alone, so that other heads' scores do not change its bits.
      highest = highest > maximum_[quad] + kSlack ? highest : maximum_[quad];
      const float factor = exp2_approx(maximum_[quad] - highest);
      maximum_[quad] = highest;
      sum_[quad] *= factor;
      VQ_UNROLL
      for (int j = 0; j < kProducts; ++j) {
        VQ_UNROLL
        for (int i = 0; i < 4; ++i) output(quad, 4 * j + i) *= factor;
      }
      VQ_UNROLL
      for (int i = kValues; i < kSums; ++i) output(quad, i) *= factor;
    }
  }

  // Channel i of this lane's, of head c of a quad.
  VQ_DEVICE float& output(int quad, int i) {
    if constexpr (kPaired) return output_[quad / 2 * kWords + i / 2][i % 2 * 2 + quad % 2];
    return output_[quad * kAll + i / 4][i % 4];
  }
  VQ_DEVICE float output(int quad, int i) const {
    return const_cast<WarpSoftmax*>(this)->output(quad, i);
  }

  static constexpr int kSums = kValues + (kZeros ? 2 : 0);       // sums per lane and quad
  static constexpr int kAll = kProducts + (kZeros ? 1 : 0);      // products of a tile and quad
  static constexpr int kWords = kValues / 2 + (kZeros ? 1 : 0);  // per lane and pair of quads

  float maximum_[kQuads];  // equal in all lanes that have the head
  float sum_[kQuads];      // over the tokens whose scores this lane held
  float output_[kPaired ? kQuads / 2 * kWords : kQuads * kAll][4];
  float largest_scale_[kQuads];  // logarithm, of the tokens that count of those in sum_
};

}  // namespace vq
