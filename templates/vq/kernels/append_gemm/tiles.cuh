// Tiles of a codebook on their way through shared memory for append_gemm. wgmma and ldmatrix
// read core matrices, into which no copy engine can lay entries: warps load eight entries at once,
// store them as core matrices and sum up |c|^2 / 2. After its matrices a tile has B - |c|^2 / 2,
// with one B for the whole codebook.
#pragma once

#include <vq/kernels/append_gemm/plan.h>
#include <vq/ops/append_share.cuh>
#include <vq/ops/bulk_ring.cuh>
#include <vq/ops/made_ring.cuh>

namespace vq {

template <class Share>
class AppendGemmTiles {
 public:
  static constexpr int kTile = tile_entries(Share::kConfig, Share::kFormat);
  static constexpr int kTiles = Share::kEntries / kTile;
  static constexpr int kRowsBytes = core_rows_bytes(Share::kFormat);
  static constexpr int kWarps = Share::kThreads / 32;
  // Each warp brings so many times eight entries of a tile, if there are so many.
  static constexpr int kEights = ceil_div(kTile / kCoreRows, kWarps);
  static constexpr int kQuarter = ceil_div(Share::kVectorSize / 8, 4);
  // With warpgroups, entries arrive by bulk copies, and each warp waits for the other warps' part.
  using Raw = BulkRing<kRawTiles, raw_tile_bytes(Share::kConfig, Share::kFormat), kWarps>;
  using Ring =
      MadeRing<kTileBuffers, tile_place_bytes(Share::kConfig, Share::kFormat), kWarps, kWarps>;

  // Tiles of book `book`, searched after `searches` others.
  VQ_DEVICE AppendGemmTiles(const Share& share, i64 book, int searches)
      : book_(reinterpret_cast<const u8*>(share.to.codebooks) +
              book * Share::kEntries * (kSize * 2)),
        before_(kTiles % (2 * kTileBuffers * kRawTiles) == 0
                    ? 0u
                    : static_cast<u32>(searches * kTiles)) {}

  // The pipeline from tile `tile` on. Its state follows from the tile number, which saves
  // registers.
  VQ_DEVICE Ring ring(int tile) const {
    return Ring(kPlaces, Share::kShared.search + kAt.beside, before_ + static_cast<u32>(tile));
  }
  VQ_DEVICE Raw raw(int tile) const {
    return Raw(
        shared_part<u8>(Share::kShared.search + kAt.raw),
        shared_part<u8>(Share::kShared.search + kAt.beside + kTileBuffers * kRingBesideBytes),
        in_book(tile), kTiles - tile, before_ + static_cast<u32>(tile));
  }

  // A lane's part of a tile: a quarter of one entry in each eight entries of the warp.
  struct Chunks {
    U32x4 words[kEights][kQuarter];
  };
  VQ_DEVICE const u8* in_book(int tile) const { return book_ + tile * (kTile * kSize * 2); }
  // Loads this lane's part of a tile in the codebook's layout.
  template <class Load>
  VQ_DEVICE static void load(Chunks& to, const u8* tile, Load load) {
    VQ_UNROLL
    for (int i = 0; i < kEights; ++i) {
      const u8* const from = tile + (first_entry(i) + lane() % kCoreRows) * (kSize * 2);
      VQ_UNROLL
      for (int c = 0; c < kQuarter; ++c) {
        to.words[i][c] = U32x4{};
        if (!has(i) || !has_chunk(c)) continue;
        to.words[i][c] = load(reinterpret_cast<const U32x4*>(from + chunk(c) * 16));
      }
    }
  }
  // |c|^2 / 2 of the entries of which the lane has chunks.
  struct Norms {
    float halves[kEights];

    // The largest of these norms and `others`.
    VQ_DEVICE float largest(float others) const {
      VQ_UNROLL
      for (int i = 0; i < kEights; ++i) others = larger(others, halves[i]);
      return others;
    }
  };
  // Stores entries as core matrices. Asynchronous copies to core matrices would take one access per
  // lane.
  VQ_DEVICE static Norms store(const Chunks& from, u8* tile) {
    Norms norms{};
    VQ_UNROLL
    for (int i = 0; i < kEights; ++i) {
      if (!has(i)) continue;
      u8* const to = core(tile, first_entry(i)) + lane() % kCoreRows * kCoreRowBytes;
      float sums[2] = {};
      VQ_UNROLL
      for (int c = 0; c < kQuarter; ++c) {
        const U32x4 words = from.words[i][c];
        if (has_chunk(c)) store_shared(reinterpret_cast<U32x4*>(to + chunk(c) * kCoreBytes), words);
        VQ_UNROLL
        for (int w = 0; w < 4; ++w) {
          const u32 word = word_of(words, w);
          const float low = to_float<kElement>(static_cast<u16>(word & 0xffffu));
          const float high = to_float<kElement>(static_cast<u16>(word >> 16));
          sums[0] += low * low;
          sums[1] += high * high;
        }
      }
      float sum = 0.5f * (sums[0] + sums[1]);
      sum += shuffle_xor(sum, 8);
      sum += shuffle_xor(sum, 16);
      norms.halves[i] = sum;
    }
    return norms;
  }
  // B of a search, the largest norm of its first tile; all threads.
  VQ_DEVICE static float offset(const Norms& norms) {
    keep_largest(norms.largest(0.0f));
    sync_block();
    return smaller(largest(), kMostOffset);
  }
  VQ_DEVICE static void store_norms(const Norms& norms, u8* tile, float offset) {
    VQ_UNROLL
    for (int i = 0; i < kEights; ++i) {
      if (has(i) && lane() < 8) {
        store_shared(below_offset(tile, first_entry(i)) + lane(), offset - norms.halves[i]);
      }
    }
  }

  VQ_DEVICE u8* place(int tile) const {
    const u32 number = (before_ + static_cast<u32>(tile)) % kTileBuffers;
    return shared_part<u8>(kPlaces) + number * tile_place_bytes(Share::kConfig, Share::kFormat);
  }

  // Addresses in a tile: the core matrices of 8 entries; B - |c|^2 / 2 from an entry on.
  VQ_DEVICE static u8* core(u8* tile, int entry) { return tile + entry / kCoreRows * kRowsBytes; }
  VQ_DEVICE static float* below_offset(u8* tile, int entry) {
    return reinterpret_cast<float*>(tile + kTile / kCoreRows * kRowsBytes) + entry;
  }

  // The largest norm of the codebook, once all threads have kept what they have seen and met at a
  // barrier.
  VQ_DEVICE static void keep_largest(float largest) {
    VQ_UNROLL
    for (int mask = 4; mask > 0; mask /= 2) largest = larger(largest, shuffle_xor(largest, mask));
    if (lane() == 0) store_shared(largest_at() + warp(), largest);
  }
  VQ_DEVICE static float largest() {
    float all = 0.0f;
    VQ_UNROLL
    for (int w = 0; w < kWarps; ++w) all = larger(all, load_shared(largest_at() + w));
    return all;
  }

 private:
  static constexpr int kSize = Share::kVectorSize;
  static constexpr int kChunks = kSize / 8;  // 16-byte chunks per entry
  static constexpr Element kElement = Share::kConfig.element;
  static constexpr ProductsShared kAt = products_shared(Share::kConfig, Share::kFormat);
  static constexpr i64 kPlaces = Share::kShared.search + kAt.tiles;
  static constexpr float kMostOffset = 0x1p60f;
  VQ_DEVICE static int first_entry(int i) { return (warp() * kEights + i) * kCoreRows; }
  VQ_DEVICE static bool has(int i) {
    return kTile / kCoreRows % kWarps == 0 || first_entry(i) < kTile;
  }
  // Eight lanes take chunks of eight entries. They store a core matrix, and read from as many
  // banks: the chunks' numbers differ where entries begin at the same bank.
  VQ_DEVICE static int chunk(int c) {
    constexpr int kTurned = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
    return (4 * c + lane() / kCoreRows) ^ lane() % kCoreRows * kTurned / 8;
  }
  VQ_DEVICE static bool has_chunk(int c) {
    return kChunks % 4 == 0 || 4 * c + lane() / kCoreRows < kChunks;
  }

  VQ_DEVICE static float* largest_at() {
    return shared_part<float>(Share::kShared.search + kAt.largest);
  }

  const u8* book_;
  u32 before_;
};

}  // namespace vq
