// Plan of attention by tables: inner products of the query and all key entries are made first, and
// looked up for each token.
#pragma once

#include <vq/layout/attention_tiles.h>

namespace vq {

struct AttentionLut {
  int threads = 256;
  int tile_tokens = 64;
  int splits = 1;
  Combine combine = Combine::kernel;
  int heads_per_block = 1;
  int tiles_in_flight = 2;
  int table_bits = 32;
  Placement value_codebook{};

  static constexpr const char* kType = "AttentionLut";
  static constexpr const char* kName = "attention_lut";
  static constexpr int lanes_per_token = 8;
  static constexpr int key_channel_splits = 1;
  static constexpr int value_channel_splits = 1;
  // Each key entry is read once, from global memory.
  static constexpr Placement key_codebook{};

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AttentionLut;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("tile_tokens", &P::tile_tokens, Range{1, 1024}, Doc::kTileTokens);
    visit("splits", &P::splits, Range{1, 1024}, Doc::kTokenSplits);
    visit("combine", &P::combine, kNoCluster, Doc::kMergesSplits);
    visit("heads_per_block", &P::heads_per_block, Range{1, 4096}, Doc::kHeadsPerBlock);
    visit("tiles_in_flight", &P::tiles_in_flight, Range{1, 2}, Doc::kTilesInFlight);
    visit("table_bits", &P::table_bits, Range{16, 32},
          "bits of an inner product, 32 (fp32) or 16 (f16, which rounds scores)");
    visit("value_codebook", &P::value_codebook, Range{}, Doc::kValueCodebook);
  }
};

// The table holds entry e's inner product with sub-vector s for `table_heads` adjacent query heads,
// which one lookup loads; more heads are further planes:
//
//   table [plane][stage][entry][table_columns][table_heads] of table_bits, stage scales included
//
// 8 lanes share a token, each with a run of lane_sub_vectors whose codes are contiguous. Column 8 j
// + l is sub-vector j of lane l's run, so that lanes look up adjacent columns:
//
//   column      |  0            |  1            | ..  7 |  8                |  9                |
//   .. sub-vector  |  0            |  n            |    7n |  1                |  n + 1 |
VQ_HD constexpr int power_of_two_from(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}
inline constexpr int kTableLanes = 8;
VQ_HD constexpr int lane_sub_vectors(const AttentionConfig<AttentionLut>& c) {
  return ceil_div(c.head_dim / c.keys.vector_size, kTableLanes);
}
VQ_HD constexpr int table_columns(const AttentionConfig<AttentionLut>& c) {
  return kTableLanes * lane_sub_vectors(c);
}
VQ_HD constexpr int table_heads(const AttentionConfig<AttentionLut>& c) {
  const int most = 128 / c.table_bits;  // the widest access
  const int wanted = power_of_two_from(c.heads_per_block);
  return wanted < most ? wanted : most;
}
VQ_HD constexpr int table_planes(const AttentionConfig<AttentionLut>& c) {
  return ceil_div(c.heads_per_block, table_heads(c));
}
VQ_HD constexpr i64 table_bytes(const AttentionConfig<AttentionLut>& c) {
  return i64{table_planes(c)} * c.keys.num_codebooks * entries(c.keys) * table_columns(c) *
         table_heads(c) * (c.table_bits / 8);
}

}  // namespace vq
