// Plan of kv_append by GEMM, for sub-vectors of 16 channels or more (VQKV): tiles of entries pass
// through shared memory, tensor cores multiply them by all sub-vectors of a block, and the few
// entries that may be nearest are compared in fp32.
#pragma once

#include <vq/layout/append.h>
#include <vq/layout/core_matrices.h>

namespace vq {

struct AppendGemm {
  int threads = 256;
  int splits = 1;
  int tokens_per_block = 256;
  int tile_bytes = 24576;
  int warpgroups = 0;
  static constexpr int warps_along_entries = 1;
  static constexpr int sub_vectors_per_warp = 1;
  static constexpr int sequences_per_block = 1;
  static constexpr bool norms = false;  // norms of all entries

  static constexpr const char* kType = "AppendGemm";
  static constexpr const char* kName = "append_gemm";

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AppendGemm;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("splits", &P::splits, Range{1, 128},
          "blocks that share the sub-vectors of a row, at most: each writes whole words");
    visit("tokens_per_block", &P::tokens_per_block, Range{1, 512},
          "new tokens of a sequence that a block encodes at once");
    visit("tile_bytes", &P::tile_bytes, Range{1024, 65536},
          "bytes of the entries that arrive in shared memory together, at most, where they are "
          "more than 64");
    visit("warpgroups", &P::warpgroups, Range{0, 1},
          "1: the kernel multiplies by warp groups (wgmma); 0: by warps (mma)");
  }
};

using ProductsConfig = AppendConfig<AppendGemm>;

// Sub-vectors per warp in the GEMM, and in the comparison of what it leaves, one per lane: equal,
// except that shared memory holds half as many warps of long entries.
VQ_HD constexpr int product_vectors(const ProductsConfig& c) { return c.warpgroups == 1 ? 16 : 32; }
VQ_HD constexpr int compared_vectors(const ProductsConfig& c, const FormatConfig& f) {
  return f.vector_size <= 96 ? product_vectors(c) : 32;
}
inline constexpr int kProductEntries = 32;  // the least of a codebook
inline constexpr int kTileBuffers = 2;      // tiles in core-matrix layout
inline constexpr int kRawTiles = 2;         // tiles as bulk copies deliver them, with wgmma

// Entries in shared memory are core matrices of 8 entries by 16 bytes; those of an entry's octets
// are contiguous.
VQ_HD constexpr int core_rows_bytes(const FormatConfig& f) {
  return f.vector_size / 8 * kCoreBytes;
}

// Entries per tile: 64, or more if they fit tile_bytes, or all. With wgmma registers bound them.
inline constexpr int kMostGroupTile = 128;
VQ_HD constexpr int tile_entries(const ProductsConfig& c, const FormatConfig& f) {
  const int all = entries(f);
  const int most = c.warpgroups == 1 && all > kMostGroupTile ? kMostGroupTile : all;
  int count = all < 64 ? all : 64;
  while (count < most && count * 2 / kCoreRows * core_rows_bytes(f) <= c.tile_bytes) count *= 2;
  return count;
}
VQ_HD constexpr int raw_tile_bytes(const ProductsConfig& c, const FormatConfig& f) {
  return tile_entries(c, f) * f.vector_size * 2;
}
// A tile in core-matrix layout, followed by B - |c|^2 / 2 in fp32.
VQ_HD constexpr int tile_place_bytes(const ProductsConfig& c, const FormatConfig& f) {
  return tile_entries(c, f) / kCoreRows * core_rows_bytes(f) + tile_entries(c, f) * 4;
}

// Entries per set: a lane keeps a row's largest estimate of a set. Four sets are a group of
// consecutive entries. Larger codebooks have larger sets, so that set numbers have few bits.
VQ_HD constexpr int set_entries(const FormatConfig& f) { return entries(f) >= 16384 ? 16 : 4; }

// Bytes between entries of sets in shared memory: an odd multiple of 16, so that eight have no bank
// conflicts.
VQ_HD constexpr int staged_bytes(const FormatConfig& f) { return f.vector_size * 2 + 16; }

// A run: the sub-vectors of a unit that a block's warps take at once; and the runs per unit.
VQ_HD constexpr int run_vectors(const ProductsConfig& c) {
  return c.threads / 32 * product_vectors(c);
}
VQ_HD constexpr int unit_runs(const ProductsConfig& c, const FormatConfig& f) {
  return ceil_div(c.tokens_per_block * unit_sub_vectors(c, f), run_vectors(c));
}
// Estimates that a lane keeps of a row's sets, and that its four lanes keep together: candidates to
// compare, and one bound for all others. A row that needs more costs its block a pass over all
// entries. bf16 rounds eight times as coarsely as f16.
VQ_HD constexpr int lane_estimates(const ProductsConfig& c) {
  return c.element == Element::bf16 ? 5 : 3;
}
VQ_HD constexpr int kept_estimates(const ProductsConfig& c) {
  return c.element == Element::bf16 ? 8 : 4;
}

// Byte offsets into the part of shared memory that a search has to itself.
struct ProductsShared {
  i64 tiles;     // [kTileBuffers] tiles, and B - |c|^2 / 2 of their entries
  i64 raw;       // [kRawTiles] tiles as they arrive, with wgmma
  i64 sets;      // in the same place, once the products are done: of each warp that compares 32
                 // entries
  i64 kept;      // there, too, but behind the tiles that products read: [kept_estimates + 2]
                 // [run_vectors] fp32, |h|^2 and |r|^2 the last two
  i64 largest;   // [warp] fp32: the largest norm that it has seen
  i64 partials;  // [2][warp] fp32 and u32: the nearest of a warp's share of all entries
  i64 beside;    // [kTileBuffers + kRawTiles] barriers of both pipelines, with wgmma
  i64 total;
};
VQ_HD constexpr ProductsShared products_shared(const ProductsConfig& c, const FormatConfig& f) {
  ProductsShared at{};
  Carver carve;
  const i64 places = i64{kTileBuffers} * tile_place_bytes(c, f);
  const i64 tiles = places + (c.warpgroups == 1 ? i64{kRawTiles} * raw_tile_bytes(c, f) : i64{0});
  const i64 sets = i64{run_vectors(c)} / compared_vectors(c, f) * 32 * staged_bytes(f);
  const i64 kept = sets > places ? sets : places;
  const i64 compared = kept + i64{kept_estimates(c) + 2} * run_vectors(c) * 4;
  at.tiles = at.sets = carve(tiles > compared ? tiles : compared);
  at.raw = at.tiles + places;
  at.kept = at.tiles + kept;
  at.largest = carve(i64{c.threads} / 32 * 4);
  at.partials = carve(i64{2} * (c.threads / 32) * 8);
  at.beside = carve(c.warpgroups == 1 ? i64{kTileBuffers + kRawTiles} * kRingBesideBytes : i64{0});
  at.total = carve.next;
  return at;
}
// Padding: rows of multiples of 16 channels would conflict in banks if lanes read one each.
VQ_HD constexpr int row_floats(const ProductsConfig&, const FormatConfig& f) {
  return f.part.channels + 8;
}
VQ_HD constexpr i64 search_bytes(const ProductsConfig& c, const FormatConfig& f) {
  return products_shared(c, f).total;
}

VQ_HD constexpr CallShape call_shape(const ProductsConfig& c, i64 batch) {
  return append_shape(c, "kv_append_gemm", batch);
}

}  // namespace vq
