// Plan of attention by channels: blocks share the keys' channels, and partial scores are reduced
// through global memory before the softmax (VQ-LLM, section VI-A).
#pragma once

#include <vq/layout/attention_tiles.h>

namespace vq {

struct AttentionChannels {
  int threads = 128;
  int tile_tokens = 64;
  int splits = 1;
  int heads_per_block = 1;
  int lanes_per_token = 8;
  int tiles_in_flight = 2;
  int key_channel_splits = 1;
  int value_channel_splits = 1;
  Placement key_codebook{};
  Placement value_codebook{};

  static constexpr const char* kType = "AttentionChannels";
  static constexpr const char* kName = "attention_channels";
  // A last block would merge splits; blocks share the channels of a result too.
  static constexpr Combine combine = Combine::kernel;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AttentionChannels;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("tile_tokens", &P::tile_tokens, Range{1, 1024}, Doc::kTileTokens);
    visit("splits", &P::splits, Range{1, 1024}, Doc::kTokenSplits);
    visit("heads_per_block", &P::heads_per_block, Range{1, 4096}, Doc::kHeadsPerBlock);
    visit("lanes_per_token", &P::lanes_per_token, Range{1, 32}, Doc::kLanesPerToken);
    visit("tiles_in_flight", &P::tiles_in_flight, Range{1, 2}, Doc::kTilesInFlight);
    visit("key_channel_splits", &P::key_channel_splits, Range{1, 128},
          "blocks that share the channels of a head's keys, each with its own codebooks");
    visit("value_channel_splits", &P::value_channel_splits, Range{1, 128},
          "blocks that share the channels of a head's values");
    visit("key_codebook", &P::key_codebook, Range{}, Doc::kKeyCodebook);
    visit("value_codebook", &P::value_codebook, Range{}, Doc::kValueCodebook);
  }
};

// A kernel makes scores, another sums values, and the blocks of each share the channels of a head.
VQ_HD constexpr CallShape call_shape(const AttentionConfig<AttentionChannels>& c, i64 batch,
                                     i64 tokens) {
  CallShape shape{};
  const i64 blocks = i64{c.kv_heads} * head_blocks(c);
  shape.add({"attention_channel_scores", "scores", c.splits, blocks * c.key_channel_splits, batch,
             c.threads, shared_layout(c, AttentionPart::kScores).total, false, true});
  shape.add({"attention_channel_values", "values", c.splits, blocks * c.value_channel_splits, batch,
             c.threads, shared_layout(c, AttentionPart::kValues).total, false, true});
  // One fp32 score of each share, token and head of a query token.
  const i64 scores = query_rows(c, batch) * c.query_heads * c.key_channel_splits * tokens * 4;
  add_attention_workspace(c, batch, ceil_div(scores, i64{16}) * 16, shape);
  return shape;
}

}  // namespace vq
