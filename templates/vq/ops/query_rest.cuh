// The integer query (query_bytes.cuh) with channel factors: one channel's factor may leave the
// others too few steps of the row's largest. The rounding error then becomes integers for a second
// MMA, which all heads of a block take together; heads that do not need it have zeros.
#pragma once

#include <vq/ops/query_bytes.cuh>

namespace vq {

template <class Plan, class Row>
class QueryRest : public QueryBytes<Plan, Row> {
  using Base = QueryBytes<Plan, Row>;

 public:
  using Base::kOctetWords;
  using Base::kPeak;
  using Base::kQuarter;
  static constexpr float kOfRest = 2.0f * kPeak;  // a rest is half a step at most

  // True if rounding the query to bytes moves scores by more than rounding to elements does: its
  // deviation is 0.29 steps times 73 sqrt(head_dim), that of uniform bytes. `step` turns an integer
  // into a score in units of log2. False if `step` is NaN.
  VQ_DEVICE static bool needs_rest(float step) {
    constexpr float kMost = Plan::config().element == Element::f16 ? 0x1p-10f : 0x1p-7f;
    constexpr float kNatural = 0.6931472f * 0.29f * 73.0f;
    constexpr float kDim = static_cast<float>(Plan::config().head_dim);
    return step * step * (kNatural * kNatural * kDim) > kMost * kMost;
  }

  // True if a head of the block needs its rest; `steps` are those of this lane's heads. All lanes
  // of the warp get it.
  VQ_DEVICE static bool any_needs_rest(const float (&steps)[Base::kQuads]) {
    bool needed = false;
    VQ_UNROLL
    for (int quad = 0; quad < Base::kQuads; ++quad) needed = needed || needs_rest(steps[quad]);
    return any_of_warp(needed);
  }
  // Adds the scores that the rests contribute.
  template <int kTiles>
  VQ_DEVICE static void add_scores(const float (&rests)[kTiles][Base::kQuads],
                                   float (&scores)[kTiles][Base::kQuads]) {
    VQ_UNROLL
    for (int i = 0; i < kTiles * Base::kQuads; ++i) {
      float& score = scores[i / Base::kQuads][i % Base::kQuads];
      score = fused(rests[i / Base::kQuads][i % Base::kQuads], 1.0f / kOfRest, score);
    }
  }

  // QueryBytes::prepare(), which also stores the rests in the same order.
  template <class Weight>
  VQ_DEVICE static void prepare(u32* words, u32* rests, int head, const float* row, float factor,
                                Weight weight, bool with_rest) {
    for (int i = lane(); i < 4 * kQuarter; i += 32) {
      Bytes bytes, rest;
      VQ_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int channel = Row::channel(i / kQuarter, kQuarter, i % kQuarter, j);
        const float value = Base::channel_of(row, channel) * factor * weight(channel);
        const i32 whole = nearest_within(value, kPeak);
        const float left = (value - static_cast<float>(whole)) * kOfRest;
        bytes.put(j, whole);
        rest.put(j, with_rest ? nearest_within(left, kPeak) : 0);
      }
      bytes.store(words, head, i);
      rest.store(rests, head, i);
    }
  }

 private:
  struct Bytes {
    u32 high = 0, low = 0;
    VQ_DEVICE void put(int j, i32 whole) {
      const i32 first = (whole + 64) >> 7;
      high |= (static_cast<u32>(first) & 0xffu) << 8 * j;
      low |= (static_cast<u32>(whole - first * 128) & 0xffu) << 8 * j;
    }
    VQ_DEVICE void store(u32* words, int head, int i) const {
      u32* const to =
          words + query_word(kQuarter, kOctetWords, head * 2, i / kQuarter, i % kQuarter);
      store_shared(to, high);
      store_shared(to + query_word(kQuarter, kOctetWords, 1, 0, 0), low);
    }
  };
};

}  // namespace vq
