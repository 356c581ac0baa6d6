// attention_decode by channels: blocks share a head's channels, the axis along which codebooks
// switch, so that each loads only the codebooks of its channel groups (the codebook-centric
// dataflow of VQ-LLM VI-A). A key's sum over channels becomes a reduction over blocks before the
// softmax:
//
//   1. attention_channel_scores: a block per (split of tokens, heads, share of the keys' channels);
//      partial scores go to global memory
//   2. attention_channel_values: a block per (split, heads, share of the values' channels) sums its
//      tokens' partial scores in the order of the shares, and goes on as simt does
//   3. attention_combine, if there is more than one split
//
// Splits and heads are equal in both, and all orders are fixed: results repeat to the bit.
#pragma once

#include <vq/kernels/attention_channels/plan.h>
#include <vq/ops/attention_key_lanes.cuh>
#include <vq/ops/attention_tiles.cuh>

namespace vq {

// Rows [batch][query token][query_head][share of the keys] of `capacity` floats.
template <class Plan>
VQ_DEVICE i64 partial_scores(const AttentionDecodeArgs& args, const AttentionWork<Plan>& work,
                             int head, int share) {
  const i64 slot = QueryToken<Plan>::slot(work.batch, work.number);
  const i64 row = slot * Plan::config().query_heads + work.first_head + head;
  return (row * Plan::config().key_channel_splits + share) * args.capacity;
}

template <class Plan>
VQ_DEVICE void attention_channel_scores(const AttentionDecodeArgs& args) {
  using Keys = KeyLanes<Plan, AttentionPart::kScores>;
  constexpr int kShares = Plan::config().key_channel_splits;
  const int share = block_y() % kShares;
  AttentionWork<Plan>::of_block(args, kShares, [&](const AttentionWork<Plan>& work) {
    Keys keys(args, work, share);
    const auto codes = [](int buffer) {
      return shared_part<u32>(shared_layout(Plan::config(), AttentionPart::kScores).codes) +
             buffer * Plan::config().tile_tokens * Keys::kWords;
    };
    keys.prepare();
    for_each_tile<Plan::config().tile_tokens, Plan::config().tiles_in_flight>(
        work, [&](int first, int count, int buffer) { keys.stage(first, count, codes(buffer)); },
        [&](int first, int count, int buffer) {
          sync_block();
          keys.score(first, count, codes(buffer), [&](int head, int token, float total) {
            if (head >= work.heads) return;
            store_global(args.scores + partial_scores(args, work, head, share) + first + token,
                         total);
          });
        });
  });
}

// The Scores of AttentionTiles: sums of what the blocks of the first kernel left.
template <class Plan>
class SummedScores {
 public:
  using Work = AttentionWork<Plan>;
  static constexpr AttentionPart kPart = AttentionPart::kValues;
  static constexpr int kWords = 0;
  static constexpr int kTile = Plan::config().tile_tokens;

  VQ_DEVICE SummedScores(const AttentionDecodeArgs& args, const Work& work)
      : args_(args), work_(work) {}
  VQ_DEVICE static void prepare() {}
  VQ_DEVICE static void stage(int, int, u32*) {}

  VQ_DEVICE void score(int first, int count, const u32*, float* scores) const {
    for (int i = thread_index(); i < Plan::config().heads_per_block * kTile;
         i += Plan::config().threads) {
      const int head = i / kTile;
      const int token = i % kTile;
      if (token >= count) continue;
      float total = 0.0f;  // stays 0 for a missing head
      if (head < work_.heads) {
        const float* from = args_.scores + partial_scores(args_, work_, head, 0) + first + token;
        VQ_UNROLL
        for (int share = 0; share < Plan::config().key_channel_splits; ++share) {
          total += load_global(from + share * args_.capacity);
        }
      }
      store_shared(scores + i, total);
    }
  }

 private:
  const AttentionDecodeArgs& args_;
  const Work work_;
};

template <class Plan>
VQ_DEVICE void attention_channel_values(const AttentionDecodeArgs& args) {
  constexpr int kShares = Plan::config().value_channel_splits;
  AttentionWork<Plan>::of_block(args, kShares, [&](const AttentionWork<Plan>& work) {
    AttentionTiles<Plan, SummedScores<Plan>>(args, work, block_y() % kShares).run();
  });
}

}  // namespace vq
