// Plan of simt attention: each lane decodes sub-vectors of its own, in fp32.
#pragma once

#include <vq/layout/attention_tiles.h>

namespace vq {

struct AttentionSimt {
  int threads = 128;
  int tile_tokens = 64;
  int splits = 1;
  Combine combine = Combine::kernel;
  int heads_per_block = 1;
  int lanes_per_token = 8;
  int tiles_in_flight = 2;
  Placement key_codebook{};
  Placement value_codebook{};

  static constexpr const char* kType = "AttentionSimt";
  static constexpr const char* kName = "attention_simt";
  static constexpr int key_channel_splits = 1;
  static constexpr int value_channel_splits = 1;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AttentionSimt;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("tile_tokens", &P::tile_tokens, Range{1, 1024}, Doc::kTileTokens);
    visit("splits", &P::splits, Range{1, 1024}, Doc::kTokenSplits);
    visit("combine", &P::combine, kNoCluster, Doc::kMergesSplits);
    visit("heads_per_block", &P::heads_per_block, Range{1, 4096}, Doc::kHeadsPerBlock);
    visit("lanes_per_token", &P::lanes_per_token, Range{1, 32}, Doc::kLanesPerToken);
    visit("tiles_in_flight", &P::tiles_in_flight, Range{1, 2}, Doc::kTilesInFlight);
    visit("key_codebook", &P::key_codebook, Range{}, Doc::kKeyCodebook);
    visit("value_codebook", &P::value_codebook, Range{}, Doc::kValueCodebook);
  }
};

}  // namespace vq
