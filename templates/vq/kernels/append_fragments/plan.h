// Plan of appending by fragments: products on tensor cores estimate the distances of many
// sub-vectors to all entries, and the few entries that may be nearest are compared in fp32.
#pragma once

#include <vq/layout/append.h>

namespace vq {

struct AppendFragments {
  int threads = 256;
  int splits = 1;
  int tokens_per_block = 64;
  static constexpr int warps_along_entries = 1;
  static constexpr int sub_vectors_per_warp = 1;  // of those that are compared with all entries
  static constexpr bool norms = true;

  static constexpr const char* kType = "AppendFragments";
  static constexpr const char* kName = "append_fragments";

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AppendFragments;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("splits", &P::splits, Range{1, 128},
          "blocks that share the sub-vectors of a row, at most: each writes whole words");
    visit("tokens_per_block", &P::tokens_per_block, Range{1, 128},
          "new tokens of a sequence that a block encodes at once");
  }
};

// A product is of 16 sub-vectors and a tile of 8 entries; a warp has 4 of them for a tile.
inline constexpr int kAppendTile = 8;
inline constexpr int kAppendRowTiles = 4;
inline constexpr int kAppendItem = 16 * kAppendRowTiles;  // sub-vectors of a warp at once

// Tiles of a group: of a group's entries a lane keeps its least estimate.
VQ_HD constexpr int group_tiles(const FormatConfig& f) {
  const int tiles = entries(f) / kAppendTile;
  const int wanted = tiles >= 128 ? 8 : 4;
  return tiles < wanted ? tiles : wanted;
}

// Items of a block that a unit makes.
VQ_HD constexpr int unit_items(const AppendConfig<AppendFragments>& c, const FormatConfig& f) {
  return ceil_div(c.tokens_per_block * unit_sub_vectors(c, f), kAppendItem);
}

VQ_HD constexpr CallShape call_shape(const AppendConfig<AppendFragments>& c, i64 batch) {
  return append_shape(c, "kv_append_fragments", batch);
}

}  // namespace vq
