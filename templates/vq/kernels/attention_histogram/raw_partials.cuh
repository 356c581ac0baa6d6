// Attention over a sequence's full-precision tokens alone, sinks and recent tokens, as partials of
// its heads. A warp loads some tokens together, for all heads of a KV head, with pairs of channels
// per lane and its own softmax; a block's warps merge in shared memory.
#pragma once

#include <vq/kernels/attention_histogram/columns.cuh>

namespace vq {

template <class Plan>
class RawPartials {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kHeads = group(kConfig);
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kWarps = kRawThreads / 32;
  static constexpr int kWords = ceil_div(kHeadDim / 2, 32);  // words per lane
  static constexpr int kFloats = kHeadDim + 2;               // [channel .., maximum, sum]
  static constexpr int kAtOnce = 4;                          // tokens per warp
  static constexpr int kPartials = partial_count(kConfig);
  static constexpr int kOfProducts = product_partials(kConfig);
  using Raw = RawRows<Plan, false>;  // values have the places of keys
  static_assert(!rows_differ(kConfig), "");
  using Splits = AttentionSplits<Plan>;

  VQ_DEVICE explicit RawPartials(const AttentionDecodeArgs& args)
      : args_(args),
        kv_head_(block_y()),
        batch_(block_z()),
        length_(length_within(args, block_z())),
        raw_(Raw::tokens(args, block_z(), length_)) {}

  VQ_DEVICE void run() {
    load_query();
    const int sinks = Raw::least(raw_.sinks, length_);
    const int recent_tokens = raw_.recent_tokens > sinks ? raw_.recent_tokens : sinks;
    const int all = sinks + length_ - recent_tokens;
    const int begin = block_x() * kRawTokens;
    const int end = Raw::least(begin + kRawTokens, all);
    for (int i = begin + warp() * kAtOnce; i < end; i += kWarps * kAtOnce) {
      int tokens[kAtOnce];
      VQ_UNROLL
      for (int t = 0; t < kAtOnce; ++t) {
        const int number = Raw::least(i + t, end - 1);  // the last one again where there is none
        tokens[t] = number < sinks ? number : recent_tokens + number - sinks;
      }
      add_tokens(tokens, end - i);
    }
    float* const own = shared_part<float>(0) + warp() * kHeads * kFloats;
    VQ_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      VQ_UNROLL
      for (int j = 0; j < kWords; ++j) {
        if (!has_word(j)) continue;
        store_shared(own + h * kFloats + channel(j), sums_[h][2 * j]);
        store_shared(own + h * kFloats + channel(j) + 1, sums_[h][2 * j + 1]);
      }
      if (lane() == 0) {
        store_shared(own + h * kFloats + kHeadDim, maximum_[h]);
        store_shared(own + h * kFloats + kHeadDim + 1, sum_[h]);
      }
    }
    sync_block();
    write();
  }

 private:
  VQ_DEVICE static int channel(int j) { return (lane() + 32 * j) * 2; }
  VQ_DEVICE static bool has_word(int j) { return kHeadDim % 64 == 0 || channel(j) < kHeadDim; }
  VQ_DEVICE static void unpack(u32 word, float& low, float& high) {
    low = to_float<kConfig.element>(static_cast<u16>(word & 0xffffu));
    high = to_float<kConfig.element>(static_cast<u16>(word >> 16));
  }
  // A word of a row of elements, which begins at a multiple of an element.
  VQ_DEVICE static u32 load_pair(const u16* row, int j) {
    if (!has_word(j)) return 0;
    return load_global(row + channel(j)) | static_cast<u32>(load_global(row + channel(j) + 1))
                                               << 16;
  }

  VQ_DEVICE void load_query() {
    VQ_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const u16* const row =
          args_.query + (i64{batch_} * kConfig.query_heads + kv_head_ * kHeads + h) * kHeadDim;
      VQ_UNROLL
      for (int j = 0; j < kWords; ++j) {
        unpack(load_pair(row, j), query_[h][2 * j], query_[h][2 * j + 1]);
        query_[h][2 * j] *= score_scale(args_);
        query_[h][2 * j + 1] *= score_scale(args_);
      }
      maximum_[h] = -infinity();
    }
  }

  // Adds the first `count` tokens.
  VQ_DEVICE void add_tokens(const int (&tokens)[kAtOnce], int count) {
    u32 keys[kAtOnce][kWords], values[kAtOnce][kWords];
    VQ_UNROLL
    for (int t = 0; t < kAtOnce; ++t) {
      const i64 place = Raw::at(args_, batch_, kv_head_, tokens[t], raw_.sinks);
      VQ_UNROLL
      for (int j = 0; j < kWords; ++j) {
        keys[t][j] = load_pair(args_.raw_keys + place, j);
        values[t][j] = load_pair(args_.raw_values + place, j);
      }
    }
    VQ_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      float scores[kAtOnce];
      float highest = maximum_[h];
      VQ_UNROLL
      for (int t = 0; t < kAtOnce; ++t) {
        scores[t] = t < count ? score_of(query_[h], keys[t]) : -infinity();
        highest = larger(highest, scores[t]);
      }
      const float rescale = exp2_approx(maximum_[h] - highest);
      maximum_[h] = highest;
      sum_[h] *= rescale;
      VQ_UNROLL
      for (int i = 0; i < 2 * kWords; ++i) sums_[h][i] *= rescale;
      VQ_UNROLL
      for (int t = 0; t < kAtOnce; ++t) {
        const float probability = exp2_approx(scores[t] - highest);
        sum_[h] += probability;
        VQ_UNROLL
        for (int j = 0; j < kWords; ++j) {
          float low, high;
          unpack(values[t][j], low, high);
          sums_[h][2 * j] += probability * low;
          sums_[h][2 * j + 1] += probability * high;
        }
      }
    }
  }
  // Returned in all lanes, which call it together.
  VQ_DEVICE static float score_of(const float (&query)[2 * kWords], const u32 (&key)[kWords]) {
    float score = 0.0f;
    VQ_UNROLL
    for (int j = 0; j < kWords; ++j) {
      float low, high;
      unpack(key[j], low, high);
      score += query[2 * j] * low + query[2 * j + 1] * high;
    }
    VQ_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) score += shuffle_xor(score, mask);
    return score;
  }

  // The sums of the warps, in their order, are the block's partial.
  VQ_DEVICE void write() const {
    for (int i = thread_index(); i < kHeads * kHeadDim; i += kRawThreads) {
      const int h = i / kHeadDim;
      typename Splits::template Part<1> parts[kWarps];
      VQ_UNROLL
      for (int w = 0; w < kWarps; ++w) {
        const float* const from = shared_part<float>(0) + (w * kHeads + h) * kFloats;
        parts[w].values[0] = load_shared(from + i % kHeadDim);
        parts[w].maximum = load_shared(from + kHeadDim);
        parts[w].sum = load_shared(from + kHeadDim + 1);
      }
      const auto all = Splits::together(parts, kWarps);
      float* const to = Splits::partial(args_, 0, kv_head_ * kHeads + h,
                                        batch_ * kPartials + kOfProducts + block_x());
      store_global(to + i % kHeadDim, all.values[0]);
      if (i % kHeadDim != 0) continue;
      store_global(to + kHeadDim, all.maximum);
      store_global(to + kHeadDim + 1, all.sum);
    }
  }

  const AttentionDecodeArgs& args_;
  int kv_head_, batch_, length_;
  typename Raw::Tokens raw_;
  float query_[kHeads][2 * kWords];
  float sums_[kHeads][2 * kWords] = {};
  float maximum_[kHeads], sum_[kHeads] = {};
};

template <class Plan>
VQ_DEVICE void attention_histogram_raw(const AttentionDecodeArgs& args) {
  RawPartials<Plan>(args).run();
}

}  // namespace vq
