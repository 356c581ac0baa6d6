// The query of one block: loaded raw, scaled, transformed for quantized keys.
#pragma once

#include <vq/ops/attention_work.cuh>
#include <vq/transform.cuh>

namespace vq {

// The query rows of a block, one warp per head; lane l has channels l + 32 j. Loading and use are
// separate, so that loads are in flight while the block does other work.
template <class Plan>
class QueryRows {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kHeads = kConfig.heads_per_block;
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kOfWarp = ceil_div(kHeads, kWarps);
  static constexpr int kOfLane = ceil_div(kHeadDim, 32);
  static constexpr bool kEven = kHeads % kWarps == 0;  // warps have as many rows
  using Row = float[kOfLane];

  // A kernel that rotates its query gives the rows later, by take().
  static constexpr bool kGiven = brings_into_basis(kConfig) && kConfig.key_basis.rotation;

  VQ_DEVICE QueryRows(const AttentionDecodeArgs& args, const AttentionWork<Plan>& work)
      : heads_(work.heads) {
    VQ_UNROLL
    for (int j = 0; j < kOfLane; ++j) {
      const int channel = lane() + 32 * j;
      smooth_[j] = 1.0f;
      if (kHeadDim % 32 != 0 && channel >= kHeadDim) continue;
      if constexpr (kConfig.keys.smooth)
        smooth_[j] = load_global(args.key_smooth + i64{work.kv_head} * kHeadDim + channel);
      VQ_UNROLL
      for (int i = 0; i < kOfWarp; ++i) {
        const int head = i * kWarps + warp();
        const i64 number = work.query_row() * kConfig.query_heads + work.first_head;
        if (!kGiven && head < heads_) {
          raw_[i][j] = load_global(
              args.query + (number + AttentionWork<Plan>::heads_to(head)) * kHeadDim + channel);
        }
      }
    }
  }

  // The rows of heads 4 quad to 4 quad + 3: load(head of the quad, channel), if they are given.
  template <class Load>
  VQ_DEVICE void take(int quad, Load load) {
    for_each([&](int i, int head) {
      if (head / 4 != quad) return;
      VQ_UNROLL
      for (int j = 0; j < kOfLane; ++j) given_[i][j] = load(head % 4, lane() + 32 * j);
    });
  }

  // Calls each(i, head) for the rows of this warp, of which `i` counts.
  template <class Each>
  VQ_DEVICE static void for_each(Each each) {
    VQ_UNROLL
    for (int i = 0; i < kOfWarp; ++i) {
      const int head = i * kWarps + warp();
      if (kEven || head < kHeads) each(i, head);
    }
  }

  // Stores `query` as q diag(lambda) H (VecInfer eq. 7), and q as raw_query if that is another
  // place; both times `scale`, rows [heads_per_block][head_dim], zeros for missing heads. A row's
  // warp calls each(i, head, row), zeros past head_dim. A barrier must follow.
  template <class Each>
  VQ_DEVICE void store(float scale, float* query, float* raw_query, Each each) const {
    for_each([&](int i, int head) {
      Row row;
      VQ_UNROLL
      for (int j = 0; j < kOfLane; ++j) {
        const int channel = lane() + 32 * j;
        const bool inside = kHeadDim % 32 == 0 || channel < kHeadDim;
        row[j] = inside && head < heads_ ? value(i, j) * scale : 0.0f;
        if constexpr (reads_raw(kConfig) && transformed(kConfig)) {
          if (inside) store_shared(raw_query + head * kHeadDim + channel, row[j]);
        }
        row[j] *= smooth_[j];
      }
      if constexpr (kConfig.keys.hadamard) hadamard_row<kHeadDim>(row);
      VQ_UNROLL
      for (int j = 0; j < kOfLane; ++j) {
        const int channel = lane() + 32 * j;
        if (kHeadDim % 32 == 0 || channel < kHeadDim)
          store_shared(query + head * kHeadDim + place_of(channel), row[j]);
      }
      each(i, head, row);
    });
  }
  VQ_DEVICE void store(float scale, float* query, float* raw_query) const {
    store(scale, query, raw_query, [](int, int, const Row&) {});
  }

 private:
  VQ_DEVICE float value(int i, int j) const {
    if constexpr (kGiven) return given_[i][j];
    return to_float<kConfig.element>(raw_[i][j]);
  }
  // Keys in parts store the query part after part.
  VQ_DEVICE static int place_of(int channel) {
    if constexpr (kConfig.key_parts.none()) {
      return channel;
    } else {
      static constexpr ChannelTable kPlaces = part_places(kConfig.key_parts, kHeadDim);
      return kPlaces.at[channel];
    }
  }

  int heads_;  // real heads of the block
  u16 raw_[kOfWarp][kOfLane];
  Row given_[kGiven ? kOfWarp : 1];
  float smooth_[kOfLane];
};

}  // namespace vq
