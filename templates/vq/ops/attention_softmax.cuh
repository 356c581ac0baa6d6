// The online softmax of a block of attention_decode, in fp32 and units of log2: a warp a head turns
// a tile's scores into probabilities relative to the highest score so far, and keeps maximum and
// sum (FlashAttention's recurrence).
#pragma once

#include <vq/layout/attention_tiles.h>
#include <vq/machine.cuh>

namespace vq {

template <class Plan, AttentionPart kPart>
struct AttentionSoftmax {
  static constexpr int kThreads = Plan::config().threads;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kTile = Plan::config().tile_tokens;
  static constexpr int kHeads = Plan::config().heads_per_block;
  VQ_HD static constexpr AttentionTilesShared at() { return shared_layout(Plan::config(), kPart); }

  // Scores, then probabilities, [kHeads][kTile]; the rest [kHeads].
  VQ_DEVICE static float* scores() { return shared_part<float>(at().scores); }
  VQ_DEVICE static float* maximum() { return shared_part<float>(at().running); }
  VQ_DEVICE static float* sum() { return maximum() + kHeads; }
  VQ_DEVICE static float* rescale() { return sum() + kHeads; }

  // Before the first tile; a barrier has to follow.
  VQ_DEVICE static void reset() {
    for (int h = thread_index(); h < kHeads; h += kThreads) {
      store_shared(maximum() + h, -infinity());
      store_shared(sum() + h, 0.0f);
    }
  }

  // Between barriers: the scores of `count` tokens, one at least.
  VQ_DEVICE static void tile(int count) {
    for (int h = warp(); h < kHeads; h += kWarps) {
      float* row = scores() + h * kTile;
      const float before = load_shared(maximum() + h);
      float highest = before;
      for (int t = lane(); t < count; t += 32) {
        const float score = load_shared(row + t);
        highest = score > highest ? score : highest;
      }
      VQ_UNROLL
      for (int mask = 16; mask > 0; mask /= 2) {
        const float other = shuffle_xor(highest, mask);
        highest = other > highest ? other : highest;
      }
      float total = 0.0f;
      for (int t = lane(); t < count; t += 32) {
        const float probability = exp2_approx(load_shared(row + t) - highest);
        store_shared(row + t, probability);
        total += probability;
      }
      VQ_UNROLL
      for (int mask = 16; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
      sync_warp();  // all lanes have read the maximum that lane 0 replaces
      if (lane() == 0) {
        const float factor = exp2_approx(before - highest);
        store_shared(rescale() + h, factor);
        store_shared(maximum() + h, highest);
        store_shared(sum() + h, load_shared(sum() + h) * factor + total);
      }
    }
  }
};

}  // namespace vq
