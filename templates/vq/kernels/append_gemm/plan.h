// Plan of appending by products: tiles of entries pass through shared memory, where tensor cores
// multiply them with all sub-vectors of a block, and the few entries that may be nearest are
// compared in fp32. For sub-vectors of 16 channels or more (VQKV).
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
  static constexpr bool norms = false;  // of all entries

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
          "1: products are of warp groups (wgmma), 0: of warps");
  }
};

using ProductsConfig = AppendConfig<AppendGemm>;

// Sub-vectors of a warp's products, and of a warp that compares what they leave, each lane one: the
// same, but for entries of which shared memory has room for half as many warps.
VQ_HD constexpr int product_vectors(const ProductsConfig& c) { return c.warpgroups == 1 ? 16 : 32; }
VQ_HD constexpr int compared_vectors(const ProductsConfig& c, const FormatConfig& f) {
  return f.vector_size <= 96 ? product_vectors(c) : 32;
}
inline constexpr int kProductEntries = 32;  // the least of a codebook
inline constexpr int kTileBuffers = 2;      // of tiles as products read them
inline constexpr int kRawTiles = 2;         // as they arrive for warp groups, by bulk copies

// Entries in shared memory are core matrices, 8 entries by 16 bytes, those of an entry's octets
// after each other.
VQ_HD constexpr int core_rows_bytes(const FormatConfig& f) {
  return f.vector_size / 8 * kCoreBytes;
}

// Entries of a tile: 64, or more where they fit tile_bytes, or all. Registers have room for the
// sums of so many with warp groups.
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
// As products read it: core matrices, and B - |c|^2 / 2 behind them, fp32.
VQ_HD constexpr int tile_place_bytes(const ProductsConfig& c, const FormatConfig& f) {
  return tile_entries(c, f) / kCoreRows * core_rows_bytes(f) + tile_entries(c, f) * 4;
}

// Entries of a set: of a row, a lane keeps the largest estimate of a set. Four sets are a group of
// entries that follow each other. More entries of a codebook are larger sets, so that their numbers
// have few bits.
VQ_HD constexpr int set_entries(const FormatConfig& f) { return entries(f) >= 16384 ? 16 : 4; }

// Entries of sets are compared from shared memory: bytes from one to the next, an odd number of 16,
// so that eight of them meet in no bank.
VQ_HD constexpr int staged_bytes(const FormatConfig& f) { return f.vector_size * 2 + 16; }

// A run: the sub-vectors of a unit that a block's warps take at once, and how many runs a unit has.
VQ_HD constexpr int run_vectors(const ProductsConfig& c) {
  return c.threads / 32 * product_vectors(c);
}
VQ_HD constexpr int unit_runs(const ProductsConfig& c, const FormatConfig& f) {
  return ceil_div(c.tokens_per_block * unit_sub_vectors(c, f), run_vectors(c));
}
// Estimates that a lane keeps of its sets of a row, a quarter of all; and a row of its four lanes:
// those of sets that may be compared, and one that bounds all others. Each row that needs more
// costs its block a pass over all entries. The rounding of bf16 is eight times that of f16.
VQ_HD constexpr int lane_estimates(const ProductsConfig& c) {
  return c.element == Element::bf16 ? 5 : 3;
}
VQ_HD constexpr int kept_estimates(const ProductsConfig& c) {
  return c.element == Element::bf16 ? 8 : 4;
}

// Byte offsets into the part of shared memory that a search has to itself.
struct ProductsShared {
  i64 tiles;     // [kTileBuffers] tiles, and B - |c|^2 / 2 of their entries
  i64 raw;       // [kRawTiles] tiles as they arrive, with warp groups
  i64 sets;      // in the same place, once the products are done: of each warp that compares 32
                 // entries
  i64 kept;      // there, too, but behind the tiles that products read: [kept_estimates + 2]
                 // [run_vectors] fp32, |h|^2 and |r|^2 the last two
  i64 largest;   // [warp] fp32: the largest norm that it has seen
  i64 partials;  // [2][warp] fp32 and u32: the nearest of a warp's share of all entries
  i64 beside;    // [kTileBuffers + kRawTiles] of the rings of both, with warp groups
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
// Rows of 16 channels' multiples would meet in a bank where lanes read one each.
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
