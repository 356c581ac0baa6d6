// Key scores on CUDA cores: kLanes threads per token decode its key once, over the block's share of
// the channels, and score it for all heads of the block in fp32.
#pragma once

#include <vq/ops/attention_query.cuh>
#include <vq/ops/attention_rows.cuh>

namespace vq {

// Scores `count` tokens: one thread per token calls put(head, token, score) after dot(token, lane,
// total) has added up each lane's part for all heads.
template <class Plan, class Dot, class Put>
VQ_DEVICE void score_by_lanes(int count, Dot dot, Put put) {
  constexpr int kHeads = Plan::config().heads_per_block;
  constexpr int kLanes = Plan::config().lanes_per_token;
  constexpr int kTokens = Plan::config().threads / kLanes;
  const int lane = thread_index() % kLanes;
  for (int base = 0; base < count; base += kTokens) {  // whole warps: shuffles below
    const int token = base + thread_index() / kLanes;
    float total[kHeads] = {};
    if (token < count) dot(token, lane, total);
    VQ_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      VQ_UNROLL
      for (int mask = kLanes / 2; mask > 0; mask /= 2) total[h] += shuffle_xor(total[h], mask);
      if (lane == 0 && token < count) put(h, token, total[h]);
    }
  }
}

template <class Plan, AttentionPart kOfPart>
class KeyLanes {
 public:
  using Work = AttentionWork<Plan>;
  using Rows = CacheRows<Plan, CacheFormat<Plan, kOfPart, true>>;
  static constexpr AttentionPart kPart = kOfPart;
  static constexpr int kHeads = Plan::config().heads_per_block;
  static constexpr int kLanes = Plan::config().lanes_per_token;
  static constexpr int kVectorSize = Rows::kVectorSize;
  static constexpr int kWords = Rows::kWords;

  VQ_DEVICE KeyLanes(const AttentionDecodeArgs& args, const Work& work, int share)
      : args_(args), work_(work), share_(share), book_(args.keys, Rows::units()) {}

  VQ_DEVICE void prepare() {
    book_.switch_to(Rows::first_unit(work_.kv_head, share_));
    book_.load();
    QueryRows<Plan>(args_, work_).store(score_scale(args_), query(), raw_query());
  }
  VQ_DEVICE void stage(int first, int count, u32* to) const {
    Rows::stage(args_.keys, work_, share_, first, count, to);
  }

  // The scores of a tile's tokens, in units of log2, each handed to put(head, token, score) by one
  // thread.
  template <class Put>
  VQ_DEVICE void score(int first, int count, const u32* keys, Put put) const {
    const auto of_token = [&](int token, int lane, float(&total)[kHeads]) {
      if (reads_raw(Plan::config()) && work_.is_raw(first + token)) {
        const u16* row = work_.raw_key(args_, first + token);
        dot(lane, raw_query(), total,
            [&](int s, float(&value)[kVectorSize]) { Rows::load_raw(row, share_, s, value); });
      } else {
        const u32* row = keys + token * kWords;
        dot(lane, query(), total,
            [&](int s, float(&value)[kVectorSize]) { Rows::decode(book_, row, share_, s, value); });
      }
    };
    score_by_lanes<Plan>(count, of_token, put);
  }

 private:
  VQ_HD static constexpr AttentionTilesShared at() { return shared_layout(Plan::config(), kPart); }
  VQ_DEVICE static float* query() { return shared_part<float>(at().query); }
  VQ_DEVICE static float* raw_query() { return shared_part<float>(at().raw_query); }

  // total[h] += q_h . key over the sub-vectors of this lane; fetch(s, value) brings the key's.
  template <class Fetch>
  VQ_DEVICE void dot(int lane, const float* queries, float (&total)[kHeads], Fetch fetch) const {
    for (int s = lane; s < Rows::kSubVectors; s += kLanes) {
      float value[kVectorSize];
      fetch(s, value);
      VQ_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        const float* q =
            queries + h * Plan::config().head_dim + share_ * Rows::kChannels + s * kVectorSize;
        VQ_UNROLL
        for (int i = 0; i < kVectorSize; ++i) total[h] += load_shared(q + i) * value[i];
      }
    }
  }

  const AttentionDecodeArgs& args_;
  const Work work_;
  const int share_;
  typename Rows::Book book_;
};

}  // namespace vq
