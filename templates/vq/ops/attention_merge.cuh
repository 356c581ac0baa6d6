// The warps' parts of one block become one, in the order of the warps, in shared memory:
//
//   merge   maximum [warp][head], sum [warp][head], weighted [warp][value][lane]
//
// A lane's values are its accumulators for one head of a quad (warp_softmax.cuh).
#pragma once

#include <vq/layout/attention_fragments.h>
#include <vq/ops/attention_work.cuh>

namespace vq {

// kQuads quads of heads, kValues accumulators of a lane for its head of each.
template <class Plan, int kQuads, int kValues>
class AttentionMerge {
 public:
  static constexpr AttentionDecodeConfig kConfig = Plan::config();
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kHeads = kQuads * 4;
  static constexpr AttentionFragmentsShared kAt = fragments_layout(kConfig);

  VQ_DEVICE static float* output() { return floats(kAt.output); }
  VQ_DEVICE static float* maximum() { return floats(kAt.running); }
  VQ_DEVICE static float* sum() { return maximum() + kConfig.heads_per_block; }

  // Lane (g, c) brings for head c of each quad its warp's maximum, its own share of the sum, and
  // its accumulators: channels g kValues + i. All threads; begins and ends with a barrier.
  VQ_DEVICE static void run(const float (&highest)[kQuads], const float (&part)[kQuads],
                            const float (&values)[kQuads][kValues / 4][4]) {
    sync_block();  // what stood in this memory has been read
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      float total = part[quad];
      VQ_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) total += shuffle_xor(total, mask);
      if (lane() < 4) {
        store_shared(warp_maximum(warp(), quad * 4 + lane()), highest[quad]);
        store_shared(warp_sum(warp(), quad * 4 + lane()), total);
      }
    }
    sync_block();
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const float weight = exp2_approx(highest[quad] - block_maximum(quad * 4 + lane() % 4));
      VQ_UNROLL
      for (int i = 0; i < kValues; ++i) {
        store_shared(weighted(warp(), quad * kValues + i) + lane(),
                     values[quad][i / 4][i % 4] * weight);
      }
    }
    sync_block();
    join();
    sync_block();
  }

 private:
  VQ_DEVICE static float* floats(i64 offset) {
    return reinterpret_cast<float*>(shared_memory() + offset);
  }
  VQ_DEVICE static float* warp_maximum(int of, int head) {
    return floats(kAt.merge) + of * kHeads + head;
  }
  VQ_DEVICE static float* warp_sum(int of, int head) {
    return floats(kAt.merge) + (kWarps + of) * kHeads + head;
  }
  VQ_DEVICE static float* weighted(int of, int value) {
    return floats(kAt.merge) + 2 * kWarps * kHeads + (of * kQuads * kValues + value) * 32;
  }

  VQ_DEVICE static float block_maximum(int head) {
    float highest = load_shared(warp_maximum(0, head));
    for (int w = 1; w < kWarps; ++w) {
      const float other = load_shared(warp_maximum(w, head));
      highest = other > highest ? other : highest;
    }
    return highest;
  }

  VQ_DEVICE static void join() {
    for (int i = thread_index(); i < kQuads * kValues * 32; i += kConfig.threads) {
      const int head = i / 32 / kValues * 4 + i % 4;
      const int channel = i % 32 / 4 * kValues + i / 32 % kValues;
      if (head >= kConfig.heads_per_block) continue;
      float total = 0.0f;
      for (int w = 0; w < kWarps; ++w) total += load_shared(weighted(w, i / 32) + i % 32);
      store_shared(output() + head * kConfig.head_dim + channel, total);
    }
    for (int head = thread_index(); head < kConfig.heads_per_block; head += kConfig.threads) {
      const float highest = block_maximum(head);
      float total = 0.0f;
      for (int w = 0; w < kWarps; ++w) {
        total += load_shared(warp_sum(w, head)) *
                 exp2_approx(load_shared(warp_maximum(w, head)) - highest);
      }
      store_shared(maximum() + head, highest);
      store_shared(sum() + head, total);
    }
  }
};

}  // namespace vq
