// Running softmax of one warp and its weighted sum of values in integers, for int8_mma attention.
// Lanes and channels as in warp_softmax.cuh: lane (g, c) has the scores of row g of each tile of 8
// tokens with head c of each quad, and of that head's output the channels whose codes it reads.
//
//   p   a probability is an integer of 16 bits: 2^kOne times what it is relative to the maximum
//   a   of a sub-vector of four channels, words of rows 2c and 2c + 1 of four tiles are turned, so
//       that four tokens of a channel are a word: rows g and g + 8 are two channels, k the tokens
//   b   columns are head n / 2 of a quad, byte n % 2 of p, the high one first
//   c   so c0 and c1 are 256 c0 + c1 = the sum of a channel of head c, c2 and c3 of the next
//
// Integer sums are exact. The maximum is a whole number, in units of log2, and rises only when a
// probability would not fit 16 bits: then sums are shifted.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_int8_mma/plan.h>
#include <vq/kernels/attention_int8_mma/raw_tiles.cuh>
#include <vq/kernels/attention_int8_mma/token_ends.cuh>
#include <vq/lanes/fragment_lanes.cuh>
#include <vq/loads.cuh>
#include <vq/numbers.cuh>

namespace vq {

template <class Plan>
class ByteSoftmax {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr AttentionInt8MmaShared kAt = bytes_layout(kConfig);
  static constexpr int kTiles = kBytesStep / 8;
  static constexpr int kQuads = quad_heads(kConfig) / 4;
  static constexpr int kHeads = kQuads * 4;
  static constexpr LaneRow kRow = lane_row(kConfig, true);
  static constexpr int kVectors =
      query_span(kConfig.value_dim) / 32;  // words of four channels per lane
  // A lane's channels are an eighth of the row, as those of raw values are.
  static constexpr bool kInOrder = kRow.count == 1;
  // Words of two rows of each tile. Where entries have 2 elements, in the upper halves of those of
  // the first code and of the second.
  using ValueWords = u32[2][2 * kTiles];
  static constexpr int kWarps = kConfig.threads / 32;
  // A smaller value would raise the maximum less often, but p would have a bit less: visible if one
  // of thousands of tokens has most of the weight.
  static constexpr float kOne = 15.98f;
  static constexpr float kMost = 15.995f;  // the largest exponent whose power fits 16 bits
  static constexpr float kLowest = -1.0e30f;
  using Scores = float[kTiles][kQuads];
  static constexpr bool kRaw = reads_raw(kConfig);
  static constexpr bool kSeesPart = sees_part(kConfig);
  static constexpr bool kSkips = kConfig.max_sinks > 0 || kSeesPart;
  using Raw = Either<kRaw, RawTiles<Plan>, NoRawTiles>;
  using Ends = TokenEnds<Plan>;

  VQ_DEVICE ByteSoftmax() {
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) maximum_[quad] = kLowest, sum_[quad] = 0.0f;
    VQ_UNROLL
    for (int i = 0; i < kVectors * kQuads * 8; ++i) sum(i) = 0;
  }

  // The token in row `row` of a tile. Pairs of the last four rows are swapped, so that lanes that
  // read value codes of rows 2c, or of rows 2c + 1, have no bank conflicts.
  VQ_DEVICE static int token_of(int row) { return row < 4 ? row : row ^ 1; }

  // Tokens below `sinks`, which are raw, do not count; nor do those below `common_start` for query
  // tokens that do not see them.
  VQ_DEVICE void skip_below(int sinks, int common_start) {
    sinks_ = sinks;
    from_ = sinks > common_start ? sinks : common_start;
  }
  // Takes the ends of the codes of each query token, which the block has kept.
  VQ_DEVICE void take_ends() {
    if constexpr (Ends::kSeveral) {
      ends_.load();
      least_end_ = Ends::least_codes();
    }
  }

  // Sums of products become exponents: times scale[quad] they are scores in units of log2. Tokens
  // from `end` on, of the step from `first` on, get -inf.
  VQ_DEVICE void to_exponents(Scores& scores, const float (&scale)[kQuads], int first, int end) {
    Scores exponents;
    bool above = false;
    VQ_UNROLL
    for (int i = 0; i < kTiles * kQuads; ++i) {
      exponents[i / kQuads][i % kQuads] =
          exponent(scores[i / kQuads][i % kQuads], scale, i % kQuads);
      above = above || exponents[i / kQuads][i % kQuads] > kMost;
    }
    const int whole = Ends::kSeveral && least_end_ < end ? least_end_ : end;
    if (any_of_warp(above) || first + kBytesStep > whole || (kSkips && first < from_)) {
      raise_maximum(scores, scale, first, end);
      VQ_UNROLL
      for (int i = 0; i < kTiles * kQuads; ++i) {
        const float own = exponent(scores[i / kQuads][i % kQuads], scale, i % kQuads);
        const float most = own > kMost ? kMost : own;  // huge scores round above it
        exponents[i / kQuads][i % kQuads] =
            counts(i / kQuads, first, end, i % kQuads) ? most : -infinity();
      }
    }
    VQ_UNROLL
    for (int i = 0; i < kTiles * kQuads; ++i) {
      scores[i / kQuads][i % kQuads] = exponents[i / kQuads][i % kQuads];
    }
  }

  // Operand b of the four tiles for each quad, from what to_exponents() made.
  struct Weights {
    u32 words[kQuads][2];
  };
  VQ_DEVICE Weights to_weights(const Scores& exponents) {
    Weights weights;
    const u32 part = lane_group() % 2 == 0 ? 0x7531u : 0x6420u;  // high bytes, or low ones
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      u32 turned[kTiles];
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const float p = exp2_approx(exponents[tile][quad]);
        sum_[quad] += p;
        constexpr float kWhole = 8388608.0f;  // 2^23: the last bits of a sum with it are an integer
        const u32 bits = float_bits(p + kWhole);
        turned[tile] = movmatrix_trans(byte_permute(bits, bits, 0x1010u));
      }
      weights.words[quad][0] = byte_permute(turned[0], turned[1], part);
      weights.words[quad][1] = byte_permute(turned[2], turned[3], part);
    }
    return weights;
  }

  // Adds word kVector of this lane's, whose entries of rows 2c and 2c + 1 of each tile follow each
  // other.
  template <int kVector>
  VQ_DEVICE void add(const ValueWords& entries, const Weights& weights) {
    u32 channels[2][4];
    VQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      if constexpr (kRow.parts[part_of_word(kRow, kVector)].size == 2) {
        turn_pairs(channels[half], entries[0] + 4 * half, first_half<kVector>());
        turn_pairs(channels[half] + 2, entries[1] + 4 * half, kUpperHalves);
      } else {
        turn_quads(channels[half], entries[0] + 4 * half);
      }
    }
    VQ_UNROLL
    for (int pair = 0; pair < 2; ++pair) {
      const u32 a[4] = {channels[0][2 * pair], channels[0][2 * pair + 1], channels[1][2 * pair],
                        channels[1][2 * pair + 1]};
      VQ_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        mma_m16n8k32_s8_u8(sums_[kVector][pair][quad], a, weights.words[quad]);
      }
    }
  }

  // Sets the maximum from the warp's first step, tokens from `first` on, for share_maximum(). Call
  // it before anything is summed.
  VQ_DEVICE void take_maximum(const Scores& scores, const float (&scale)[kQuads], int first,
                              int end) {
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      maximum_[quad] = highest_of(scores, scale, first, end, quad);
    }
  }
  // How far below the block's maximum its warps begin. A probability is rounded relative to its
  // warp's maximum: with one maximum for all, the error is that of a warp with all tokens of the
  // block; one bit below, that of a warp with a quarter.
  VQ_DEVICE static float below_shared(int tokens) {
    if (tokens <= kBytesManyTokens) return 0.0f;
    return tokens <= 4 * kBytesManyTokens ? 1.0f : 2.0f;
  }
  // Gives all warps a common start maximum per head, less `below`, unless their own is larger;
  // their maxima then rise less often. All threads of a block; each warp has called take_maximum()
  // or has no tokens.
  VQ_DEVICE void share_maximum(float below) {
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      if (lane() < kGroupLanes) store_shared(sum_of(quad * 4 + lane(), warp()), maximum_[quad]);
    }
    sync_block();
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      VQ_UNROLL
      for (int w = 0; w < kWarps; ++w) {
        const float of_warp = load_shared(sum_of(quad * 4 + place_in_group(), w));
        maximum_[quad] = larger(maximum_[quad], of_warp - below);
      }
      maximum_[quad] = ceiling(maximum_[quad]);
    }
  }

  // Merges the warps' parts in warp order: codes times the scales of the values' parts, and raw
  // tokens. Starts with a barrier, after which entries and rounds are free. Calls each(head,
  // channel, value, maximum, sum). All threads.
  template <class Each>
  VQ_DEVICE void merge(const Raw& raw, const float (&scales)[kMostLaneParts], Each each) {
    if (lane() < kGroupLanes) {
      VQ_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        float own = maximum_[quad];
        if constexpr (kRaw) own = larger(own, whole_maximum(raw, quad));
        store_shared(maximum_of(quad * 4 + lane(), warp()), own);
      }
    }
    sync_block();
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const int head = quad * 4 + place_in_group();
      const float highest = block_maximum(head);
      const float weight = exp2_approx(maximum_[quad] - highest);
      float total = sum_[quad] * weight;
      float of_raw = 0.0f;
      if constexpr (kRaw) {
        of_raw = exp2_approx(raw.maximum(quad) + kOne - highest);
        total = fused(raw.sum(quad), of_raw, total);
      }
      VQ_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) total += shuffle_xor(total, mask);
      if (lane() < kGroupLanes) store_shared(sum_of(head, warp()), total);
      float* const part = part_of(warp(), head);
      for_each_number<0, kVectors>([&](auto vector) {
        constexpr int kPlace = part_of_word(kRow, vector);
        constexpr LanePart kCodes = kRow.parts[kPlace];
        int channel = channel_of_word(kCodes, kValueLanes, lane_group(), vector, 0);
        float scale = scales[kPlace];
        if constexpr (vector == kRow.mixed_word) {
          constexpr LanePart kPairs = kRow.parts[kRow.pairs], kQuads = kRow.parts[kRow.quads];
          const bool upper = lane_group() >= kValueLanes / 2;
          channel = upper ? mixed_channel(kQuads, kValueLanes, lane_group())
                          : mixed_channel(kPairs, kValueLanes, lane_group());
          scale = upper ? scales[kRow.quads] : scales[kRow.pairs];
        }
        const float factor = weight * scale;
        const auto bits = [&](int i) {
          const i32(&own)[4] = sums_[vector][i / 2][quad];
          const auto high = static_cast<float>(own[i % 2 * 2]);
          const auto low = static_cast<float>(own[i % 2 * 2 + 1]);
          const float of_codes = fused(high, 256.0f, low) * factor;
          if constexpr (kRaw && kInOrder)
            return float_bits(fused(raw.output(quad, vector * 4 + i), of_raw, of_codes));
          else
            return float_bits(of_codes);
        };
        store_shared(reinterpret_cast<U32x4*>(part + channel),
                     U32x4{bits(0), bits(1), bits(2), bits(3)});
      });
      if constexpr (kRaw && !kInOrder) {
        add_raw(part + lane_group() * kVectors * 4, raw, quad, of_raw);
      }
    }
    sync_block();
    for (int i = thread_index(); i < kConfig.heads_per_block * kConfig.value_dim;
         i += kConfig.threads) {
      const int head = i / kConfig.value_dim;
      const int channel = i % kConfig.value_dim;
      float value = 0.0f, total = 0.0f;
      VQ_UNROLL
      for (int w = 0; w < kWarps; ++w) {
        value += load_shared(part_of(w, head) + channel);
        total += load_shared(sum_of(head, w));
      }
      each(head, channel, value, block_maximum(head) - kOne, total);
    }
  }

 private:
  VQ_DEVICE static float* maximum_of(int head, int w) {
    return shared_part<float>(kAt.maximum) + head * kWarps + w;
  }
  VQ_DEVICE static float* sum_of(int head, int w) {
    return shared_part<float>(kAt.sum) + head * kWarps + w;
  }
  VQ_DEVICE static float* part_of(int w, int head) {
    return shared_part<float>(kAt.parts) + (w * kHeads + head) * part_row(kConfig.value_dim);
  }
  // A block that shifts its maximum keeps it whole, so that shifts of splits round alike.
  VQ_DEVICE static float whole_maximum(const Raw& raw, int quad) {
    const float own = raw.maximum(quad) + kOne;
    if constexpr (takes_out_of_basis(kConfig)) return ceiling(own);
    return own;
  }
  // Adds raw tokens to this lane's eighth of the warp's part, which other lanes may have stored.
  VQ_DEVICE static void add_raw(float* part, const Raw& raw, int quad, float weight) {
    sync_warp();
    VQ_UNROLL
    for (int vector = 0; vector < kVectors; ++vector) {
      U32x4* const to = reinterpret_cast<U32x4*>(part) + vector;
      const U32x4 coded = load_shared(to);
      const auto bits = [&](int i) {
        return float_bits(
            fused(raw.output(quad, vector * 4 + i), weight, float_from_bits(word_of(coded, i))));
      };
      store_shared(to, U32x4{bits(0), bits(1), bits(2), bits(3)});
    }
  }
  // Four rows' entries of 4 elements as words of a channel each; a half of each row likewise, which
  // is two channels.
  VQ_DEVICE static void turn_quads(u32* channels, const u32* rows) {
    const u32 low01 = byte_permute(rows[0], rows[1], 0x5140u);
    const u32 high01 = byte_permute(rows[0], rows[1], 0x7362u);
    const u32 low23 = byte_permute(rows[2], rows[3], 0x5140u);
    const u32 high23 = byte_permute(rows[2], rows[3], 0x7362u);
    channels[0] = byte_permute(low01, low23, 0x5410u);
    channels[1] = byte_permute(low01, low23, 0x7632u);
    channels[2] = byte_permute(high01, high23, 0x5410u);
    channels[3] = byte_permute(high01, high23, 0x7632u);
  }
  VQ_DEVICE static void turn_pairs(u32* channels, const u32* rows, u32 halves) {
    const u32 half01 = byte_permute(rows[0], rows[1], halves);
    const u32 half23 = byte_permute(rows[2], rows[3], halves);
    channels[0] = byte_permute(half01, half23, 0x5410u);
    channels[1] = byte_permute(half01, half23, 0x7632u);
  }
  static constexpr u32 kUpperHalves = 0x7362u, kLowerHalves = 0x5140u;
  // Which halves of the first entries are the first two channels of a word of pairs: in a mixed
  // word the upper half of the lanes has entries of 4 elements.
  template <int kVector>
  VQ_DEVICE static u32 first_half() {
    if constexpr (kVector != kRow.mixed_word) return kUpperHalves;
    return lane_group() < kValueLanes / 2 ? kUpperHalves : kLowerHalves;
  }
  VQ_DEVICE static float block_maximum(int head) {
    float highest = load_shared(maximum_of(head, 0));
    VQ_UNROLL
    for (int w = 1; w < kWarps; ++w) highest = larger(highest, load_shared(maximum_of(head, w)));
    return highest;
  }

  VQ_DEVICE float exponent(float score, const float (&scale)[kQuads], int quad) const {
    return fused(score, scale[quad], kOne - maximum_[quad]);
  }
  VQ_DEVICE bool counts(int tile, int first, int end, int quad) const {
    const int token = first + tile * 8 + token_of(lane_group());
    const bool seen = !Ends::kSeveral || token < ends_.codes(quad);
    if constexpr (!kSkips) return token < end && seen;
    if constexpr (!Ends::kSeveral || !kSeesPart) return token < end && seen && token >= from_;
    return token < end && seen && token >= sinks_ && token >= ends_.begin(quad);
  }

  // The larger of the head's maximum and the scores of its tokens that count.
  VQ_DEVICE float highest_of(const Scores& scores, const float (&scale)[kQuads], int first, int end,
                             int quad) const {
    float highest = maximum_[quad];
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      if (counts(tile, first, end, quad))
        highest = larger(highest, scores[tile][quad] * scale[quad]);
    }
    VQ_UNROLL
    for (int mask = 4; mask < 32; mask *= 2) {
      highest = larger(highest, shuffle_xor(highest, mask));
    }
    return highest;
  }

  // Raises a head's maximum if counted scores exceed it by too much. Each head decides alone, so
  // that other heads do not change its bits.
  VQ_DEVICE void raise_maximum(const Scores& scores, const float (&scale)[kQuads], int first,
                               int end) {
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      float highest = highest_of(scores, scale, first, end, quad);
      highest = highest > maximum_[quad] + (kMost - kOne) ? ceiling(highest) : maximum_[quad];
      const float rise = highest - maximum_[quad];
      maximum_[quad] = highest;
      sum_[quad] *= exp2_approx(-rise);
      constexpr float kAll = 30.0f;  // bits, that leave next to nothing
      const int bits = rise < kAll ? static_cast<int>(rise) : static_cast<int>(kAll);
      const i32 half = (1 << bits) >> 1;
      VQ_UNROLL
      for (int vector = 0; vector < kVectors; ++vector) {
        VQ_UNROLL
        for (int i = 0; i < 8; ++i) {
          i32& own = sums_[vector][i / 4][quad][i % 4];
          own = (own + half) >> bits;
        }
      }
    }
  }

  VQ_DEVICE i32& sum(int i) { return sums_[i / 8 / kQuads][i % 8 / 4][i / 8 % kQuads][i % 4]; }

  float maximum_[kQuads];  // equal in all lanes that have the head
  float sum_[kQuads];      // over the tokens whose scores this lane had
  int sinks_ = 0, from_ = 0;
  Ends ends_;
  int least_end_ = 0;
  i32 sums_[kVectors][2][kQuads][4];
};

}  // namespace vq
