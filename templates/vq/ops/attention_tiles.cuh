// The loop of attention_decode over a split of tokens, a tile at a time:
//   1. the tile's packed rows arrive in shared memory, asynchronously, the next tile's meanwhile;
//   2. `Scores` scores its tokens for all heads of the block;
//   3. scores become probabilities (attention_softmax.cuh);
//   4. values are decoded and accumulated (attention_values.cuh).
// Tokens of the sinks and of the raw window go the same way, with raw elements for decoded ones.
//
// Scores is a dataflow's own part:
//   kPart, kWords                 of the op; words of a token's keys to stage
//   Scores(args, work)
//   prepare()                     query and codebooks
//   stage(first, count, to)       queues the tokens' words
//   score(first, count, keys, scores)   scores[h][t] = q_h . k_t in units of log2; begins with a
//                                 barrier where it reads what stage() queued, or prepare() stored
#pragma once

#include <vq/ops/attention_values.cuh>

namespace vq {

template <class Plan, class Scores>
class AttentionTiles {
 public:
  using Work = AttentionWork<Plan>;
  using Softmax = AttentionSoftmax<Plan, Scores::kPart>;
  using Values = AttentionValues<Plan, Scores::kPart>;
  static constexpr int kTile = Plan::config().tile_tokens;
  static constexpr int kStages = Plan::config().tiles_in_flight;
  static constexpr int kTileWords = kTile * (Scores::kWords + Values::kWords);

  // `share` of the channels of the values.
  VQ_DEVICE AttentionTiles(const AttentionDecodeArgs& args, const Work& work, int share)
      : work_(work), scores_(args, work), values_(args, work, share) {}

  VQ_DEVICE void run() {
    values_.load();
    Softmax::reset();
    scores_.prepare();
    stage_tile(work_.begin, 0);
    int buffer = 0;
    for (int first = work_.begin; first < work_.end; first += kTile) {
      const int count = work_.end - first < kTile ? work_.end - first : kTile;
      if constexpr (kStages == 2) stage_tile(first + kTile, buffer ^ 1);
      copy_async_wait<kStages - 1>();
      const u32* keys = codes() + buffer * kTileWords;
      scores_.score(first, count, keys, Softmax::scores());
      sync_block();
      Softmax::tile(count);
      sync_block();
      values_.accumulate(first, count, keys + kTile * Scores::kWords);
      sync_block();
      if constexpr (kStages == 1) stage_tile(first + kTile, 0);
      if constexpr (kStages == 2) buffer ^= 1;
    }
    values_.write();
  }

 private:
  VQ_DEVICE static u32* codes() { return shared_part<u32>(Softmax::at().codes); }

  // Queues the rows of tokens [first, first + kTile) within the split, and closes the group even
  // where there is none, so that the count of pending groups is the same for every tile.
  VQ_DEVICE void stage_tile(int first, int buffer) const {
    const int left = work_.end - first;
    const int count = left < kTile ? left : kTile;
    u32* keys = codes() + buffer * kTileWords;
    scores_.stage(first, count, keys);
    values_.stage(first, count, keys + kTile * Scores::kWords);
    copy_async_commit();
  }

  const Work work_;
  Scores scores_;
  Values values_;
};

}  // namespace vq
