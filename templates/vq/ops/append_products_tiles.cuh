// Tiles of a codebook as they pass through shared memory for append_products: copies of the next
// ones, |c|^2 / 2 of their entries, and where products find both.
#pragma once

#include <vq/kernels/append_products/plan.h>
#include <vq/ops/append_share.cuh>

namespace vq {

template <class Share>
class AppendProductsTiles {
 public:
  static constexpr int kTile = tile_entries(Share::kConfig, Share::kFormat);
  static constexpr int kTiles = Share::kEntries / kTile;
  static constexpr int kRowsBytes = core_rows_bytes(Share::kFormat);

  VQ_DEVICE AppendProductsTiles(const Share& share, i64 book)
      : book_(reinterpret_cast<const u8*>(share.to.codebooks) +
              book * Share::kEntries * (kSize * 2)) {}

  // All but one buffer's.
  VQ_DEVICE void begin() const {
    VQ_UNROLL
    for (int tile = 0; tile < kTileBuffers - 1; ++tile) copy(tile);
  }
  // A group of copies, of none behind the last tile.
  VQ_DEVICE void copy(int tile) const {
    if (tile < kTiles) begin_copies(tile);
    copy_async_commit();
  }

  // Eight entries a warp, four lanes for each; `largest` is that of all that the thread has seen.
  VQ_DEVICE static void sum_norms(int tile, float& largest) {
    constexpr int kWarps = Share::kThreads / 32;
    VQ_UNROLL
    for (int i = 0; i < ceil_div(kTile / kCoreRows, kWarps); ++i) {
      const int eight = i * kWarps + warp();
      if (kTile / kCoreRows % kWarps != 0 && eight >= kTile / kCoreRows) continue;
      const u8* const at = core(tile, 8 * eight) + lane() % 8 * kCoreRowBytes;
      float sums[2] = {};
      VQ_UNROLL
      for (int c = 0; c < ceil_div(kChunks, 4); ++c) {
        const int chunk = 4 * c + lane() / 8;
        const bool real = kChunks % 4 == 0 || chunk < kChunks;
        const U32x4 words =
            load_shared(reinterpret_cast<const U32x4*>(at + (real ? chunk : 0) * kOctetBytes));
        VQ_UNROLL
        for (int w = 0; w < 4; ++w) {
          const u32 word = real ? word_of(words, w) : 0u;
          const float low = to_float<kElement>(static_cast<u16>(word & 0xffffu));
          const float high = to_float<kElement>(static_cast<u16>(word >> 16));
          sums[0] += low * low;
          sums[1] += high * high;
        }
      }
      float sum = 0.5f * (sums[0] + sums[1]);
      sum += shuffle_xor(sum, 8);
      sum += shuffle_xor(sum, 16);
      largest = larger(largest, sum);
      if (lane() < 8) store_shared(norms(tile, 8 * eight) + lane(), sum);
    }
  }

  // The core matrices of 8 entries; norms from an entry on.
  VQ_DEVICE static u8* core(int tile, int entry) {
    return shared_part<u8>(Share::kShared.search + kAt.tiles) +
           (tile % kTileBuffers * (kTile / kCoreRows) + entry / kCoreRows) * kRowsBytes;
  }
  VQ_DEVICE static float* norms(int tile, int entry) {
    return shared_part<float>(Share::kShared.search + kAt.norms) + tile % 2 * kTile + entry;
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
    for (int w = 0; w < Share::kThreads / 32; ++w) all = larger(all, load_shared(largest_at() + w));
    return all;
  }

 private:
  static constexpr int kSize = Share::kVectorSize;
  static constexpr int kChunks = kSize / 8;  // of 16 bytes that an entry has
  static constexpr Element kElement = Share::kConfig.element;
  static constexpr ProductsShared kAt = products_shared(Share::kConfig, Share::kFormat);

  VQ_DEVICE void begin_copies(int tile) const {
    constexpr int kAll = kTile * kChunks;
    const u8* const from = book_ + tile * (kTile * kSize * 2);
    u8* const to = core(tile, 0);
    VQ_UNROLL
    for (int i = 0; i < ceil_div(kAll, Share::kThreads); ++i) {
      const u32 chunk = static_cast<u32>(i * Share::kThreads + thread_index());
      if (kAll % Share::kThreads != 0 && chunk >= kAll) continue;
      const u32 entry = chunk / kChunks;
      copy_constant_async(reinterpret_cast<U32x4*>(to + entry / kCoreRows * kRowsBytes +
                                                   entry % kCoreRows * kCoreRowBytes +
                                                   chunk % kChunks * kOctetBytes),
                          reinterpret_cast<const U32x4*>(from + chunk * 16));
    }
  }

  VQ_DEVICE static float* largest_at() {
    return shared_part<float>(Share::kShared.search + kAt.largest);
  }

  const u8* book_;
};

}  // namespace vq
