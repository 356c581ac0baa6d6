// The search of append_products: the same nearest entries as those of AppendWideStage, bit for bit.
//
// With y = x / scale and h, y rounded to 16 bits, tensor cores estimate g(c) = |c|^2 / 2 - h c of
// all sub-vectors of a block to all entries c, upon |c|^2 / 2 in fp32. Entries pass through shared
// memory in tiles. A lane gets 2 columns of each 8 entries; what it has of 32 (64) entries that
// follow each other is a *set*. Of a set it keeps the least g, whose last bits become the set's
// number; of a row, the least of all sets and some more. Each set that may have the nearest entry
// is compared in fp32 by the rule of all. Where there may be more such sets than a row keeps, and
// where numbers are too large or none, the block compares all entries.
//
// The margin. Let r = y - h, which is measured: fp32 has it exactly. Let b be the entry of the
// least g, a the one that the fp32 rule takes. So |y - a| is at most |y - b| but for that rule's
// rounding, and
//
//   g(a) - g(b) <= r (a - b) + the rule's rounding <= 2 |r| |y - b| + ..
//
// With R = |h - b| + 2 |r|, |y - b| and |h - a| are at most R, up to rounding, so |c| <= |h| + R of
// both. Let U = |h|^2 + R^2; then |c|^2 / 2 <= U, |h| |c| <= 1.21 U, and S, the sum of magnitudes
// in g, is at most 2.21 U. It is at most 3 M + |h|^2 / 4 as well, M the largest |c|^2 / 2 of the
// codebook. By how much a kept g may be off, for each of the two:
//
//   tensor cores     products are exact; 17 numbers are summed in some order, each cut off at
//                    2^-23 of the largest, and sums as well, in each of d / 16 steps:
//                    d / 16 x 32 x 2^-23 S
//   |c|^2 / 2        (d + 2) x 2^-24 S
//   the fp32 rule    distances: (d + 2) x 2^-24 R^2, halved in g
//   y, where scaled  2^-23 |y| |c|; entries times scale: 2^-23 R |c|, halved; 0.2 x 2^-18 U for
//   both bits of the set  2^(bits - 23) |g|; the least g is known, and only others about as small
//   count
//
// |h - b|^2 = |h|^2 + 2 g(b), and (|h - b| + 2 |r|)^2 <= 1.01 |h - b|^2 + 404 |r|^2. 5 % are for
// what is of second order.
#pragma once

#include <vq/kernels/append_products/plan.h>
#include <vq/ops/append_products_sets.cuh>
#include <vq/ops/append_products_tiles.cuh>
#include <vq/ops/append_wide_stage.cuh>

namespace vq {

template <class Share>
class AppendProductsStage {
 public:
  VQ_DEVICE AppendProductsStage(const Share& share, int stage)
      : share_(share), stage_(stage), units_(share, stage) {}

  // The first tiles of the first unit are on their way while the last stage is settled.
  VQ_DEVICE void prepare() const { Tiles(share_, units_.book(0)).begin(); }

  VQ_DEVICE void search() const {
    for (int i = 0; i < units_.units() * kUnitRuns; ++i) {
      const int unit = i / kUnitRuns;
      const int first = i % kUnitRuns * kRunVectors;
      if (first >= share_.work.count * Units::kUnitVectors) continue;
      const Tiles tiles(share_, units_.book(unit));
      if (i > 0) tiles.begin();
      search(units_.run_of(unit, first + warp() * kProductVectors), tiles);
      sync_block();
    }
    Sets(share_, stage_).compare_open();
  }

  VQ_DEVICE void settle() const { Sets(share_, stage_).settle(); }

 private:
  using Sets = AppendProductsSets<Share>;
  using Tiles = AppendProductsTiles<Share>;
  using Units = AppendUnitRows<Share>;
  using Run = typename Units::Run;
  using Row = typename Units::Row;
  static constexpr auto kConfig = Share::kConfig;
  static constexpr FormatConfig kFormat = Share::kFormat;
  static constexpr Element kElement = kConfig.element;
  static constexpr int kSize = Share::kVectorSize;
  static constexpr int kUnitRuns = unit_runs(kConfig, kFormat);
  static constexpr int kRunVectors = Share::kThreads / 32 * kProductVectors;
  static constexpr int kSteps = kSize / 16;  // of 16 columns that a product takes
  static constexpr bool kWarpgroups = kConfig.warpgroups == 1;
  static constexpr int kTile = Tiles::kTile;
  static constexpr int kSet = Sets::kSet;
  static constexpr int kGroup = 4 * kSet;
  static constexpr int kColumns = kWarpgroups && kTile > 32 ? 64 : kGroup;  // of a product
  static constexpr int kKept = Sets::kKept;
  using Least = LeastEstimates<kKept>;

  // Of a lane: rows of products, 16 of each of two tiles.
  static constexpr int kRowTiles = 2;
  static constexpr int kSlots = 2 * kRowTiles;
  static_assert(16 * kRowTiles == kProductVectors && kSize % 16 == 0, "");
  static_assert(kTile % kColumns == 0 && kColumns % kGroup == 0, "");

  VQ_DEVICE void search(const Run& run, const Tiles& tiles) const {
    const bool idle = run.first >= share_.work.count * Units::kUnitVectors;
    const Sets sets(share_, stage_);
    const float inverted = Sets::inverse(share_.scale_of(run.book));
    u32 a[kRowTiles][kSteps][4];
    float squares[kSlots], rest[kSlots];
    VQ_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      fragments(a[slot / 2], slot % 2, sets.row_of(run, row_number(slot, lane() / 4)), inverted,
                squares[slot], rest[slot]);
    }
    Least least[kSlots];
    VQ_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) least[slot].clear();
    Tiles::keep_largest(estimate(a, tiles, idle, least));
    sync_block();  // sets stand where tiles stood
    if (idle) return;
    merge(least);
    sets.compare(run, least[0], own(squares), own(rest), Tiles::largest());
  }

  // Slot 2 tile + half of group `group` of lanes; in the end lane 4 group + slot has the row.
  VQ_DEVICE static int row_number(int slot, int group) { return 8 * slot + group; }

  // -h of a row, of the lane's columns; the lane's parts of |h|^2 and |r|^2.
  VQ_DEVICE static void fragments(u32 (&a)[kSteps][4], int half, const Row& row, float inverted,
                                  float& squares, float& rest) {
    const float* const at = Sets::vector(row) + 2 * (lane() % 4);
    squares = rest = 0.0f;
    VQ_UNROLL
    for (int i = 0; i < 2 * kSteps; ++i) {
      const U32x2 pair = load_shared(reinterpret_cast<const U32x2*>(at + 8 * i));
      const float low = -float_from_bits(pair.x) * inverted;
      const float high = -float_from_bits(pair.y) * inverted;
      const u32 word = pack2<kElement>(low, high);
      const float held_low = to_float<kElement>(static_cast<u16>(word & 0xffffu));
      const float held_high = to_float<kElement>(static_cast<u16>(word >> 16));
      squares += held_low * held_low + held_high * held_high;
      rest += (low - held_low) * (low - held_low) + (high - held_high) * (high - held_high);
      a[i / 2][half + i % 2 * 2] = word;
    }
  }
  // Of the row that this lane has in the end, the sum of its four lanes.
  VQ_DEVICE static float own(float (&sums)[kSlots]) {
    VQ_UNROLL
    for (int mask = 2; mask > 0; mask /= 2) {
      const bool upper = (lane() & mask) != 0;
      VQ_UNROLL
      for (int slot = 0; slot < mask; ++slot) {
        const float gives = upper ? sums[slot] : sums[slot + mask];
        const float keeps = upper ? sums[slot + mask] : sums[slot];
        sums[slot] = keeps + shuffle_xor(gives, mask);
      }
    }
    return sums[0];
  }

  // All entries; all threads. While a tile is multiplied, the norms of the next one are summed up
  // and the two after arrive. Returns the largest norm of those that this thread has seen.
  VQ_DEVICE static float estimate(const u32 (&a)[kRowTiles][kSteps][4], const Tiles& tiles,
                                  bool idle, Least (&least)[kSlots]) {
    // What is no product stands between the begin of products and the wait for them, where
    // registers allow; else warps that share a scheduler take turns with it.
    constexpr bool kMeanwhile = kWarpgroups && kSize < 128;
    const bool norms_first = !kMeanwhile && warp() / 4 % 2 == 0;
    const bool norms_last = !kMeanwhile && !norms_first;
    float largest = 0.0f;
    copy_async_wait<kTileBuffers - 2>();
    sync_block();
    Tiles::sum_norms(0, largest);
    for (int tile = 0; tile < Tiles::kTiles; ++tile) {
      const bool more = tile + 1 < Tiles::kTiles;
      copy_async_wait<kTileBuffers - 3>();
      if (kWarpgroups) fence_shared();
      sync_block();
      if (norms_first && more) Tiles::sum_norms(tile + 1, largest);
      if constexpr (kWarpgroups) {
        Sums sums[kRowTiles];
        begin_products(a, sums, tile);
        tiles.copy(tile + kTileBuffers - 1);
        if (kMeanwhile && more) Tiles::sum_norms(tile + 1, largest);
        finish_products(a, sums, tile, least);
      } else {
        tiles.copy(tile + kTileBuffers - 1);
        if (!idle) multiply_by_warps(a, tile, least);
      }
      if (norms_last && more) Tiles::sum_norms(tile + 1, largest);
    }
    return largest;
  }

  // Of a row tile: accumulator 4 j + 2 half + i is column 8 j + 2 c + i, c the lane's number in its
  // group, of the row of slot 2 tile + half.
  using Sums = float[kColumns / 2];
  static constexpr int kProducts = kTile / kColumns;

  // |c|^2 / 2.
  VQ_DEVICE static void set_norms(Sums& sums, int tile, int product) {
    const float* const norms = Tiles::norms(tile, product * kColumns) + lane() % 4 * 2;
    VQ_UNROLL
    for (int j = 0; j < kColumns / 8; ++j) {
      const U32x2 pair = load_shared(reinterpret_cast<const U32x2*>(norms + 8 * j));
      sums[4 * j] = sums[4 * j + 2] = float_from_bits(pair.x);
      sums[4 * j + 1] = sums[4 * j + 3] = float_from_bits(pair.y);
    }
  }

  VQ_DEVICE static void begin_product(const u32 (&a)[kSteps][4], Sums& sums, int tile,
                                      int product) {
    const u64 b =
        warpgroup_operand(Tiles::core(tile, product * kColumns), kOctetBytes, Tiles::kRowsBytes);
    VQ_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      warpgroup_mma<kElement, kColumns>(sums, a[step], advanced(b, 2 * step * kOctetBytes));
    }
    warpgroup_commit();
  }
  // The first products of a tile.
  VQ_DEVICE static void begin_products(const u32 (&a)[kRowTiles][kSteps][4],
                                       Sums (&sums)[kRowTiles], int tile) {
    VQ_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      set_norms(sums[r], tile, 0);
      warpgroup_hold(sums[r]);
    }
    warpgroup_fence();
    VQ_UNROLL
    for (int r = 0; r < kRowTiles; ++r) begin_product(a[r], sums[r], tile, 0);
  }
  // While one tile of rows is multiplied, the sums of the other are taken.
  VQ_DEVICE static void finish_products(const u32 (&a)[kRowTiles][kSteps][4],
                                        Sums (&sums)[kRowTiles], int tile, Least (&least)[kSlots]) {
    VQ_UNROLL
    for (int product = 0; product < kProducts; ++product) {
      VQ_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        if (product + 1 == kProducts && r == 1) {
          warpgroup_wait<0>();
        } else {
          warpgroup_wait<1>();
        }
        warpgroup_hold(sums[r]);
        take(sums[r], tile, product, least[2 * r], least[2 * r + 1]);
        if (product + 1 < kProducts) {
          set_norms(sums[r], tile, product + 1);
          warpgroup_hold(sums[r]);
          warpgroup_fence();
          begin_product(a[r], sums[r], tile, product + 1);
        }
      }
    }
  }

  VQ_DEVICE static void multiply_by_warps(const u32 (&a)[kRowTiles][kSteps][4], int tile,
                                          Least (&least)[kSlots]) {
    for (int product = 0; product < kProducts; ++product) {
      Sums sums[kRowTiles];
      VQ_UNROLL
      for (int r = 0; r < kRowTiles; ++r) set_norms(sums[r], tile, product);
      // Of the four matrices that a load has, two octets of 16 entries, the lane gives this row.
      const u8* const row = Tiles::core(tile, product * kColumns) +
                            lane() / 16 * Tiles::kRowsBytes + lane() / 8 % 2 * kOctetBytes +
                            lane() % 8 * kCoreRowBytes;
      VQ_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        VQ_UNROLL
        for (int pair = 0; pair < kColumns / 16; ++pair) {
          u32 b[4];
          ldmatrix_x4(b, reinterpret_cast<const u32*>(row + 2 * pair * Tiles::kRowsBytes +
                                                      2 * step * kOctetBytes));
          VQ_UNROLL
          for (int i = 0; i < 2 * kRowTiles; ++i) {
            const u32 of_tile[2] = {b[i / 2 * 2], b[i / 2 * 2 + 1]};
            float* const sum = sums[i % 2] + 4 * (2 * pair + i / 2);
            float c[4] = {sum[0], sum[1], sum[2], sum[3]};
            mma_m16n8k16<kElement>(c, a[i % 2][step], of_tile);
            VQ_UNROLL
            for (int k = 0; k < 4; ++k) sum[k] = c[k];
          }
        }
      }
      VQ_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        take(sums[r], tile, product, least[2 * r], least[2 * r + 1]);
      }
    }
  }

  // The sets of a product, of a row tile's two rows.
  VQ_DEVICE static void take(const Sums& sums, int tile, int product, Least& upper, Least& lower) {
    const int set = (tile * kTile + product * kColumns) / kSet + lane() % 4;
    VQ_UNROLL
    for (int group = 0; group < kColumns / kGroup; ++group) {
      VQ_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float* const of = sums + group * (kGroup / 2) + 2 * half;
        float lowest = of[0];
        VQ_UNROLL
        for (int i = 1; i < kSet; ++i) lowest = smaller(lowest, of[i / 2 * 4 + i % 2]);
        const u32 number = static_cast<u32>(set + 4 * group);
        const float marked = float_from_bits((float_bits(lowest) & ~Sets::kSetMask) | number);
        half == 0 ? upper.take(marked) : lower.take(marked);
      }
    }
  }

  // Of all lanes of a row, to the one that has it.
  VQ_DEVICE static void merge(Least (&least)[kSlots]) {
    VQ_UNROLL
    for (int mask = 2; mask > 0; mask /= 2) {
      const bool upper = (lane() & mask) != 0;
      VQ_UNROLL
      for (int slot = 0; slot < mask; ++slot) {
        Least keeps, gives;
        VQ_UNROLL
        for (int i = 0; i < kKept; ++i) {
          keeps.value[i] = upper ? least[slot + mask].value[i] : least[slot].value[i];
          gives.value[i] = upper ? least[slot].value[i] : least[slot + mask].value[i];
        }
        VQ_UNROLL
        for (int i = 0; i < kKept; ++i) keeps.take(shuffle_xor(gives.value[i], mask));
        least[slot] = keeps;
      }
    }
  }

  const Share& share_;
  int stage_;
  Units units_;
};

}  // namespace vq
