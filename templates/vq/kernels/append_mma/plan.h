// Plan of mma kv_append: tensor cores estimate the distances of many sub-vectors to all entries,
// and the few entries that may be nearest are compared in fp32.
#pragma once

#include <vq/layout/append.h>

namespace vq {

struct AppendMma {
  int threads = 256;
  int splits = 1;
  int tokens_per_block = 64;
  int sequences_per_block = 1;
  int row_tiles = 4;
  static constexpr int warps_along_entries = 1;
  static constexpr int sub_vectors_per_warp = 1;  // of those compared with all entries
  static constexpr bool norms = true;

  static constexpr const char* kType = "AppendMma";
  static constexpr const char* kName = "append_mma";

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AppendMma;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("splits", &P::splits, Range{1, 128},
          "blocks that share the sub-vectors of a row, at most: each writes whole words");
    visit("tokens_per_block", &P::tokens_per_block, Range{1, 128},
          "new tokens of a sequence that a block encodes at once");
    visit("sequences_per_block", &P::sequences_per_block, Range{1, 32}, Doc::kSequencesPerBlock);
    visit("row_tiles", &P::row_tiles, Range{2, 4},
          "tiles of 16 sub-vectors that a warp compares with an entry once it is loaded: 2 or 4");
  }
};

// A product is of 16 sub-vectors and a tile of 8 entries.
inline constexpr int kAppendTile = 8;
inline constexpr int kAppendRows = 16;

// Sub-vectors per warp at once.
VQ_HD constexpr int item_rows(const AppendMma& plan) { return kAppendRows * plan.row_tiles; }

// Tiles of a group: of a group's entries a lane keeps its least estimate.
VQ_HD constexpr int group_tiles(const FormatConfig& f) {
  const int tiles = entries(f) / kAppendTile;
  const int wanted = tiles >= 128 ? 8 : 4;
  return tiles < wanted ? tiles : wanted;
}

// Items of a block per unit.
VQ_HD constexpr int unit_items(const AppendConfig<AppendMma>& c, const FormatConfig& f) {
  return ceil_div(block_rows(c, f) * unit_sub_vectors(c, f), item_rows(c));
}

VQ_HD constexpr bool keeps_norms(const AppendConfig<AppendMma>&, const FormatConfig& f) {
  return entry_pieces(f) == 1;
}

VQ_HD constexpr CallShape call_shape(const AppendConfig<AppendMma>& c, i64 batch) {
  return append_shape(c, "kv_append_mma", batch);
}

}  // namespace vq
