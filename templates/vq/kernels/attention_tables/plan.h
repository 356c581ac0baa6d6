// Plan of attention by tables: inner products of the query and all key entries are made first, and
// looked up for each token.
#pragma once

#include <vq/plan.h>

namespace vq {

struct AttentionTables {
  int threads = 256;
  int tile_tokens = 64;
  int splits = 1;
  Combine combine = Combine::kernel;
  int heads_per_block = 1;
  int tiles_in_flight = 2;
  int table_bits = 32;
  Placement value_codebook{};

  static constexpr const char* kType = "AttentionTables";
  static constexpr const char* kName = "attention_tables";
  static constexpr int lanes_per_token = 8;
  static constexpr int key_channel_splits = 1;
  static constexpr int value_channel_splits = 1;
  // Each key entry is read once, from global memory.
  static constexpr Placement key_codebook{};

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AttentionTables;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("tile_tokens", &P::tile_tokens, Range{1, 1024}, Doc::kTileTokens);
    visit("splits", &P::splits, Range{1, 1024}, Doc::kTokenSplits);
    visit("combine", &P::combine, Range{}, Doc::kMergesSplits);
    visit("heads_per_block", &P::heads_per_block, Range{1, 4096}, Doc::kHeadsPerBlock);
    visit("tiles_in_flight", &P::tiles_in_flight, Range{1, 2}, Doc::kTilesInFlight);
    visit("table_bits", &P::table_bits, Range{16, 32},
          "bits of an inner product, 32 (fp32) or 16 (f16, which rounds scores)");
    visit("value_codebook", &P::value_codebook, Range{}, Doc::kValueCodebook);
  }
};

}  // namespace vq
