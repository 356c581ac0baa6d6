// The warps' parts of one block become one, in the order of the warps, through shared memory:
//
//   warp_maximum [warp][head]      merge: sum [warp][head], weighted [warp][value][lane, padded]
//
// A lane's values are its accumulators for one head of a quad (warp_softmax.cuh).
#pragma once

#include <vq/kernels/attention_fragments/layout.h>
#include <vq/lanes/fragment_lanes.cuh>
#include <vq/ops/attention_work.cuh>

namespace vq {

// kQuads quads of heads, kValues accumulators of a lane for its head of each.
template <class Plan, int kQuads, int kValues>
class AttentionMerge {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kHeads = kQuads * 4;
  static constexpr AttentionFragmentsShared kAt = fragments_layout(kConfig);

  // Lane (g, c) brings for head c of each quad its warp's maximum, its own share of the sum, and
  // its accumulators: channels g kValues + i. All threads; begins with a barrier. A thread gets
  // elements of the whole: each(head, channel, value, maximum, sum), the maximum with channel 0
  // alone, the sum too where splits follow.
  template <class Each>
  VQ_DEVICE static void run(const float (&highest)[kQuads], const float (&part)[kQuads],
                            const float (&values)[kQuads][kValues / 4][4], Each each) {
    if (lane() < kGroupLanes) {
      VQ_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        store_shared(warp_maximum(warp(), quad * 4 + lane()), highest[quad]);
      }
    }
    sync_block();  // and what stood where parts go has been read
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const float weight = exp2_approx(highest[quad] - block_maximum(quad * 4 + place_in_group()));
      float total = part[quad] * weight;
      VQ_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) total += shuffle_xor(total, mask);
      if (lane() < kGroupLanes) store_shared(warp_sum(warp(), quad * 4 + lane()), total);
      VQ_UNROLL
      for (int i = 0; i < kValues; ++i) {
        store_shared(weighted(warp(), quad * kValues + i) + lane(),
                     values[quad][i / 4][i % 4] * weight);
      }
    }
    sync_block();
    for (int i = thread_index(); i < kConfig.heads_per_block * kConfig.head_dim;
         i += kConfig.threads) {
      const int head = i / kConfig.head_dim;
      const int channel = i % kConfig.head_dim;
      const int value = head / 4 * kValues + channel % kValues;
      const int of_lane = channel / kValues * 4 + head % 4;
      float sum = 0.0f;
      VQ_UNROLL
      for (int w = 0; w < kWarps; ++w) sum += load_shared(weighted(w, value) + of_lane);
      const bool first = channel == 0;
      each(head, channel, sum, first ? block_maximum(head) : 0.0f,
           first || kConfig.splits == 1 ? block_sum(head) : 0.0f);
    }
  }

 private:
  VQ_DEVICE static float* warp_maximum(int of, int head) {
    return shared_part<float>(kAt.warp_maximum) + of * kHeads + head;
  }
  VQ_DEVICE static float* warp_sum(int of, int head) {
    return shared_part<float>(kAt.merge) + of * kHeads + head;
  }
  VQ_DEVICE static float* weighted(int of, int value) {
    return shared_part<float>(kAt.merge) + kWarps * kHeads +
           (of * kQuads * kValues + value) * kMergeStride;
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
      const float other = load_shared(warp_maximum(w, head));
      highest = other > highest ? other : highest;
    }
    return highest;
  }
};

}  // namespace vq
