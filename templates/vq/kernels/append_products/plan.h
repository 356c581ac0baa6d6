// Plan of appending by products: tiles of entries pass through shared memory, where tensor cores
// multiply them with all sub-vectors of a block, and the few entries that may be nearest are
// compared in fp32. For sub-vectors of 16 channels or more (VQKV).
#pragma once

#include <vq/layout/append.h>
#include <vq/layout/core_matrices.h>

namespace vq {

struct AppendProducts {
  int threads = 256;
  int splits = 1;
  int tokens_per_block = 256;
  int tile_bytes = 24576;
  int warpgroups = 0;
  static constexpr int warps_along_entries = 1;
  static constexpr int sub_vectors_per_warp = 1;
  static constexpr int sequences_per_block = 1;
  static constexpr bool norms = false;  // of all entries

  static constexpr const char* kType = "AppendProducts";
  static constexpr const char* kName = "append_products";

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AppendProducts;
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

using ProductsConfig = AppendConfig<AppendProducts>;

// A warp has 32 sub-vectors, a lane one of them in the end.
inline constexpr int kProductVectors = 32;
inline constexpr int kProductEntries = 32;  // the least of a codebook
inline constexpr int kTileBuffers = 4;      // one of products, one of norms, two that arrive

// Entries in shared memory are core matrices, 8 entries by 16 bytes, those of an entry's octets
// after each other. 16 bytes more between them keep copies of an entry, and reads of a matrix, from
// meeting in a bank.
inline constexpr int kOctetBytes = kCoreBytes + 16;
VQ_HD constexpr int core_rows_bytes(const FormatConfig& f) {
  return f.vector_size / 8 * kOctetBytes;
}

// Entries of a tile: 64, or more where they fit tile_bytes, or all.
VQ_HD constexpr int tile_entries(const ProductsConfig& c, const FormatConfig& f) {
  const int all = entries(f);
  int count = all < 64 ? all : 64;
  while (count < all && count * 2 / kCoreRows * core_rows_bytes(f) <= c.tile_bytes) count *= 2;
  return count;
}

// Entries of a set: of a row, a lane keeps the least estimate of a set. Four sets are a group of
// entries that follow each other. More entries of a codebook are larger sets, so that their numbers
// have few bits.
VQ_HD constexpr int set_entries(const FormatConfig& f) { return entries(f) >= 16384 ? 16 : 8; }

// Entries of sets are compared from shared memory: bytes from one to the next, an odd number of 16,
// so that eight of them meet in no bank; and sets of a warp there, one of which may arrive.
VQ_HD constexpr int staged_bytes(const FormatConfig& f) { return f.vector_size * 2 + 16; }
VQ_HD constexpr int set_buffers(const FormatConfig& f) { return f.vector_size <= 96 ? 2 : 1; }

// Runs of a unit's sub-vectors that a block's warps take at once.
VQ_HD constexpr int unit_runs(const ProductsConfig& c, const FormatConfig& f) {
  return ceil_div(c.tokens_per_block * unit_sub_vectors(c, f), c.threads / 32 * kProductVectors);
}

// Byte offsets into the part of shared memory that a search has to itself.
struct ProductsShared {
  i64 tiles;     // [kTileBuffers] tiles
  i64 sets;      // in the same place, once the products are done: [warp][set_buffers][32] entries
  i64 norms;     // [2][tile_entries] fp32: |c|^2 / 2
  i64 largest;   // [warp] fp32: the largest norm that it has seen
  i64 partials;  // [2][warp] fp32 and u32: the nearest of a warp's share of all entries
  i64 total;
};
VQ_HD constexpr ProductsShared products_shared(const ProductsConfig& c, const FormatConfig& f) {
  ProductsShared at{};
  Carver carve;
  const i64 tiles = i64{kTileBuffers} * tile_entries(c, f) / kCoreRows * core_rows_bytes(f);
  const i64 sets = i64{c.threads} * set_buffers(f) * staged_bytes(f);
  at.tiles = at.sets = carve(tiles > sets ? tiles : sets);
  at.norms = carve(i64{2} * tile_entries(c, f) * 4);
  at.largest = carve(i64{c.threads} / 32 * 4);
  at.partials = carve(i64{2} * (c.threads / 32) * 8);
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
  return append_shape(c, "kv_append_products", batch);
}

}  // namespace vq
