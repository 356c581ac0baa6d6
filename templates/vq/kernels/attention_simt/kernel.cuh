// simt attention_decode over a quantized KV cache (VecInfer Alg. 1: lookups, online softmax in
// fp32, split-KV). A block serves heads of one KV head and sequence over one split of its tokens
// (attention_tiles.cuh), and decodes each key once for all of them (attention_key_lanes.cuh; keys
// in parts: attention_key_parts.cuh).
#pragma once

#include <vq/kernels/attention_simt/plan.h>
#include <vq/kernels/attention_simt/attention_key_parts.cuh>
#include <vq/ops/attention_tiles.cuh>

namespace vq {

// The Scores of AttentionTiles.
template <class Plan>
class LaneScores {
 public:
  using Keys = Either<Plan::config().key_parts.none(), KeyLanes<Plan, AttentionPart::kWhole>,
                      KeyPartLanes<Plan>>;
  static constexpr AttentionPart kPart = AttentionPart::kWhole;
  static constexpr int kWords = Keys::kWords;

  VQ_DEVICE LaneScores(const AttentionDecodeArgs& args, const AttentionWork<Plan>& work)
      : keys_(args, work, 0) {}
  VQ_DEVICE void prepare() { keys_.prepare(); }
  VQ_DEVICE void stage(int first, int count, u32* to) const { keys_.stage(first, count, to); }

  VQ_DEVICE void score(int first, int count, const u32* keys, float* scores) const {
    sync_block();
    keys_.score(first, count, keys, [&](int head, int token, float total) {
      store_shared(scores + head * Plan::config().tile_tokens + token, total);
    });
  }

 private:
  Keys keys_;
};

template <class Plan>
VQ_DEVICE void attention_simt(const AttentionDecodeArgs& args) {
  AttentionWork<Plan>::of_block(args, 1, [&](const AttentionWork<Plan>& work) {
    AttentionTiles<Plan, LaneScores<Plan>>(args, work, 0).run();
  });
}

}  // namespace vq
