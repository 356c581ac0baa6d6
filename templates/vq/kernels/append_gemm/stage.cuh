// The search of append_gemm: the same nearest entries as those of AppendWideStage, bit for bit.
//
// With y = x / scale and h, y rounded to 16 bits, let g(c) = |c|^2 / 2 - h c. Tensor cores estimate
// B - g(c) of all sub-vectors of a block to all entries c, upon B - |c|^2 / 2 in fp32; B, the
// largest |c|^2 / 2 of the first tile, leaves few of them negative (largest_estimates.cuh). Entries
// pass through shared memory in tiles. A lane gets 2 columns of each 8 entries; what it has of 16
// (64) entries that follow each other is a *set*. Of a set it takes the largest estimate, whose
// last bits become the set's number, and keeps some of the largest of a row; these of its four
// lanes together are the row's. Each set that may have the nearest entry is compared in fp32 by the
// rule of all. Where there may be more such sets than are kept, where the largest estimate is
// negative, and where numbers are too large or none, the block compares all entries.
//
// The margin. Let r = y - h, which is measured: fp32 has it exactly. Let b be the entry of the
// largest estimate, a the one that the fp32 rule takes. So |y - a| is at most |y - b| but for that
// rule's rounding, and
//
//   g(a) - g(b) <= r (a - b) + the rule's rounding <= 2 |r| |y - b| + ..
//
// With R = |h - b| + 2 |r|, |y - b| and |h - a| are at most R, up to rounding, so |c| <= |h| + R of
// both. Let U = |h|^2 + R^2; then |c|^2 / 2 <= U, |h| |c| <= 1.21 U, and S, the sum of magnitudes
// in an estimate, is at most B + 2.21 U. It is at most B + 3 M + |h|^2 / 4 as well, M the largest
// |c|^2 / 2 of the codebook. By how much a kept estimate may be off, for each of the two:
//
//   tensor cores     products are exact; 17 numbers are summed in some order, each cut off at
//                    2^-23 of the largest, and sums as well, in each of d / 16 steps:
//                    d / 16 x 32 x 2^-23 S
//   B - |c|^2 / 2    (d + 4) x 2^-24 S
//   the fp32 rule    distances: (d + 2) x 2^-24 R^2, halved in g
//   y, where scaled  2^-23 |y| |c|; entries times scale: 2^-23 R |c|, halved; 0.2 x 2^-18 U for
//   both bits of the set  2^(bits - 23) of the estimate; the largest is known, and only others
//   about as large count
//
// |h - b|^2 = |h|^2 + 2 g(b), and (|h - b| + 2 |r|)^2 <= 1.01 |h - b|^2 + 404 |r|^2. 5 % are for
// what is of second order.
#pragma once

#include <vq/kernels/append_gemm/plan.h>
#include <vq/kernels/append_gemm/sets.cuh>
#include <vq/kernels/append_gemm/tiles.cuh>
#include <vq/ops/append_wide_stage.cuh>
#include <vq/transposing_sum.cuh>

namespace vq {

template <class Share>
class AppendGemmStage {
 public:
  VQ_DEVICE AppendGemmStage(const Share& share, int stage)
      : share_(share), stage_(stage), units_(share, stage) {}

  // With warpgroups, the first tiles of the first codebook load while the last stage is settled.
  VQ_DEVICE void prepare() const {
    if (stage_ == 0) begin_rings();
    ask_for_first(0);
  }

  VQ_DEVICE void search() const {
    for (int i = 0; i < units_.units() * runs(); ++i) {
      const Tiles of_unit = tiles(i);
      if (i > 0) ask_for_first(i);
      search(i / runs(), i % runs() * kRunVectors, of_unit);
      sync_block();
    }
    Sets(share_, stage_).compare_open();
  }

  VQ_DEVICE void settle() const { Sets(share_, stage_).settle(); }

 private:
  using Sets = AppendGemmSets<Share>;
  using Tiles = AppendGemmTiles<Share>;
  using Units = AppendUnitRows<Share>;
  using Run = typename Units::Run;
  using Row = typename Units::Row;
  static constexpr auto kConfig = Share::kConfig;
  static constexpr FormatConfig kFormat = Share::kFormat;
  static constexpr Element kElement = kConfig.element;
  static constexpr int kSize = Share::kVectorSize;
  static constexpr int kUnitRuns = unit_runs(kConfig, kFormat);
  static constexpr int kRunVectors = run_vectors(kConfig);
  static constexpr int kSteps = kSize / 16;  // k steps of 16 columns
  static constexpr bool kWarpgroups = kConfig.warpgroups == 1;
  static constexpr int kTile = Tiles::kTile;
  static constexpr int kSet = Sets::kSet;
  static constexpr int kGroup = 4 * kSet;
  // Columns per MMA: a whole tile with warpgroups, if registers hold its sums.
  static constexpr int kColumns = kWarpgroups ? (kTile > 64 && kSize > 96 ? 64 : kTile) : kGroup;
  static constexpr int kKept = Sets::kKept;
  static constexpr int kOfLane = Sets::kOfLane;
  using Largest = typename Sets::OfLane;

  // GEMM rows per lane; a row tile has 16.
  static constexpr int kRowTiles = product_vectors(kConfig) / 16;
  static constexpr int kSlots = 2 * kRowTiles;
  static constexpr int kCompared = Sets::kRows;
  static_assert(kSize % 16 == 0 && kRunVectors % kCompared == 0, "");
  static_assert(kTile % kColumns == 0 && kColumns % kGroup == 0, "");

  // Runs of the codebook set that have rows.
  VQ_DEVICE int runs() const {
    if constexpr (kUnitRuns == 1) return 1;
    return ceil_div(share_.work.count * Units::kUnitVectors, kRunVectors);
  }
  // Tiles of search number `i` of the stage.
  VQ_DEVICE Tiles tiles(int i) const {
    const int all = units_.units() * runs();
    return Tiles(share_, units_.book(i / runs()), stage_ * all + i);
  }
  // One thread of the block calls it.
  VQ_DEVICE void begin_rings() const {
    if constexpr (kWarpgroups) {
      if (thread_index() != 0) return;
      tiles(0).ring(0).begin();
      tiles(0).raw(0).begin();
    }
  }
  VQ_DEVICE void ask_for_first(int i) const {
    if constexpr (kWarpgroups) {
      if (thread_index() != 0) return;
      fence_shared();  // tiles overwrite the sets
      tiles(i).raw(0).ask_for_first();
    }
  }

  // The run of a unit that begins with row `first`.
  VQ_DEVICE void search(int unit, int first, const Tiles& tiles) const {
    const int rows = share_.work.count * Units::kUnitVectors;
    const int own_first = warp() * product_vectors(kConfig);
    const Run run = units_.run_of(unit, first + own_first);
    const float inverted = Sets::inverse(share_.scale_of(run.book));
    u32 a[kRowTiles][kSteps][4];
    float squares[kSlots], rest[kSlots];
    Largest estimates[kSlots];
    VQ_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      fragments(a[slot / 2], slot % 2, Units::row_of(share_, run, row_number(slot, lane() / 4)),
                inverted, squares[slot], rest[slot]);
      estimates[slot].clear();
    }
    float offset;
    if constexpr (kWarpgroups) {
      offset = estimate_by_groups(a[0], tiles, estimates);
    } else {
      offset = estimate_by_warps(a, tiles, run.first >= rows, estimates);
    }
    const typename Sets::Largest merged = largest_of_row<kKept>(estimates);
    squares[0] = transposing_sum<kSlots, 4, 4 / kSlots>(squares);
    rest[0] = transposing_sum<kSlots, 4, 4 / kSlots>(rest);
    if (lane() % (4 / kSlots) == 0) {
      Sets::keep(own_first + row_number(lane() % 4 / (4 / kSlots), lane() / 4), merged, squares[0],
                 rest[0]);
    }
    sync_block();  // sets overwrite the tiles
    const int compared = warp() * kCompared;
    if (compared >= kRunVectors || first + compared >= rows) return;
    Sets(share_, stage_)
        .compare(units_.run_of(unit, first + compared), compared, Tiles::largest(), offset);
  }

  // Slot 2 tile + half of group `group` of lanes. In the end lanes 4 group + (4 / kSlots) slot and,
  // with two slots, the next have what all lanes of the group know of the row.
  VQ_DEVICE static int row_number(int slot, int group) { return 8 * slot + group; }

  // h of a row, of the lane's columns; the lane's parts of |h|^2 and |r|^2.
  VQ_DEVICE static void fragments(u32 (&a)[kSteps][4], int half, const Row& row, float inverted,
                                  float& squares, float& rest) {
    const float* const numbers = Sets::vector(row) + 2 * (lane() % 4);
    squares = rest = 0.0f;
    VQ_UNROLL
    for (int i = 0; i < 2 * kSteps; ++i) {
      const U32x2 pair = load_shared(reinterpret_cast<const U32x2*>(numbers + 8 * i));
      const float low = float_from_bits(pair.x) * inverted;
      const float high = float_from_bits(pair.y) * inverted;
      const u32 word = pack2<kElement>(low, high);
      const float held_low = to_float<kElement>(static_cast<u16>(word & 0xffffu));
      const float held_high = to_float<kElement>(static_cast<u16>(word >> 16));
      squares += held_low * held_low + held_high * held_high;
      rest += (low - held_low) * (low - held_low) + (high - held_high) * (high - held_high);
      a[i / 2][half + i % 2 * 2] = word;
    }
  }

  // All entries; all threads. While a tile is multiplied, the next one comes to shared memory, and
  // the one behind it to registers. Returns B.
  VQ_DEVICE static float estimate_by_warps(const u32 (&a)[kRowTiles][kSteps][4], const Tiles& tiles,
                                           bool idle, Largest (&estimates)[kSlots]) {
    typename Tiles::Chunks chunks;
    const auto load = [&](int tile) {
      if (tile < Tiles::kTiles) Tiles::load(chunks, tiles.in_book(tile), LoadGlobal{});
    };
    load(0);
    const typename Tiles::Norms first = Tiles::store(chunks, tiles.place(0));
    const float offset = Tiles::offset(first);
    Tiles::store_norms(first, tiles.place(0), offset);
    float largest = first.largest(0.0f);
    load(1);
    for (int tile = 0; tile < Tiles::kTiles; ++tile) {
      sync_block();
      if (tile + 1 < Tiles::kTiles) {
        const typename Tiles::Norms norms = Tiles::store(chunks, tiles.place(tile + 1));
        Tiles::store_norms(norms, tiles.place(tile + 1), offset);
        largest = norms.largest(largest);
      }
      load(tile + 2);
      if (!idle) multiply_by_warps(a, tiles.place(tile), tile, estimates);
    }
    Tiles::keep_largest(largest);
    return offset;
  }

  // estimate() with wgmma. Tiles arrive by bulk copies and each warp rearranges a part of the next
  // one, without __syncthreads between tiles. No wgmma is in flight at the loop's back edge: ptxas
  // would then serialize them.
  VQ_DEVICE static float estimate_by_groups(const u32 (&a)[kSteps][4], const Tiles& tiles,
                                            Largest (&estimates)[kSlots]) {
    float largest = 0.0f, offset = 0.0f;
    const auto bring = [&](int tile) {
      auto made = tiles.ring(tile);
      auto raw = tiles.raw(tile);
      raw.await();
      made.await_free();
      typename Tiles::Chunks chunks;
      Tiles::load(chunks, raw.chunk(), LoadShared{});
      const typename Tiles::Norms norms = Tiles::store(chunks, made.chunk());
      if (tile == 0) offset = Tiles::offset(norms);
      Tiles::store_norms(norms, made.chunk(), offset);
      largest = norms.largest(largest);
      raw.advance();
      raw.give_back();
      fence_shared();
      made.hand_out();
    };
    bring(0);
    for (int tile = 0; tile < Tiles::kTiles; ++tile) {
      auto read = tiles.ring(tile);
      read.await();
      multiply_by_groups(a, read.chunk(), tile, estimates, [&] {
        if (tile + 1 < Tiles::kTiles) bring(tile + 1);
      });
      read.advance();
      read.give_back();
    }
    Tiles::keep_largest(largest);
    return offset;
  }

  // Accumulator 4 j + 2 half + i of a row tile is column 8 j + 2 c + i of the row of slot 2 tile +
  // half; c is the lane's number in its group.
  using Sums = float[kColumns / 2];
  static constexpr int kProducts = kTile / kColumns;

  // B - |c|^2 / 2.
  VQ_DEVICE static void set_norms(Sums& sums, u8* tile, int product) {
    const float* const norms = Tiles::below_offset(tile, product * kColumns) + lane() % 4 * 2;
    VQ_UNROLL
    for (int j = 0; j < kColumns / 8; ++j) {
      const U32x2 pair = load_shared(reinterpret_cast<const U32x2*>(norms + 8 * j));
      sums[4 * j] = sums[4 * j + 2] = float_from_bits(pair.x);
      sums[4 * j + 1] = sums[4 * j + 3] = float_from_bits(pair.y);
    }
  }

  VQ_DEVICE static void begin_product(const u32 (&a)[kSteps][4], Sums& sums, u8* tile,
                                      int product) {
    const u64 b =
        warpgroup_operand(Tiles::core(tile, product * kColumns), kCoreBytes, Tiles::kRowsBytes);
    VQ_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      warpgroup_mma<kElement, kColumns>(sums, a[step], advanced(b, 2 * step * kCoreBytes));
    }
    warpgroup_commit();
  }
  // Issues the MMAs one by one: while a warp reads its sums, or runs `meanwhile` once, the tensor
  // cores work for other warps.
  template <class Meanwhile>
  VQ_DEVICE static void multiply_by_groups(const u32 (&a)[kSteps][4], u8* entries, int tile,
                                           Largest (&estimates)[kSlots], Meanwhile meanwhile) {
    VQ_UNROLL
    for (int product = 0; product < kProducts; ++product) {
      Sums sums;
      set_norms(sums, entries, product);
      warpgroup_hold(sums);
      warpgroup_fence();
      begin_product(a, sums, entries, product);
      if (product == 0) meanwhile();
      warpgroup_wait<0>();
      warpgroup_hold(sums);
      take(sums, tile, product, estimates[0], estimates[1]);
    }
  }

  VQ_DEVICE static void multiply_by_warps(const u32 (&a)[kRowTiles][kSteps][4], u8* entries,
                                          int tile, Largest (&estimates)[kSlots]) {
    for (int product = 0; product < kProducts; ++product) {
      Sums sums[kRowTiles];
      VQ_UNROLL
      for (int r = 0; r < kRowTiles; ++r) set_norms(sums[r], entries, product);
      // The row whose address this lane gives to ldmatrix.x4, which loads four matrices: two octets
      // of 16 entries.
      const u8* const row = Tiles::core(entries, product * kColumns) +
                            lane() / 16 * Tiles::kRowsBytes + lane() / 8 % 2 * kCoreBytes +
                            lane() % 8 * kCoreRowBytes;
      VQ_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        VQ_UNROLL
        for (int pair = 0; pair < kColumns / 16; ++pair) {
          u32 b[4];
          ldmatrix_x4(b, reinterpret_cast<const u32*>(row + 2 * pair * Tiles::kRowsBytes +
                                                      2 * step * kCoreBytes));
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
        take(sums[r], tile, product, estimates[2 * r], estimates[2 * r + 1]);
      }
    }
  }

  // The sets of a product, of a row tile's two rows.
  VQ_DEVICE static void take(const Sums& sums, int tile, int product, Largest& upper,
                             Largest& lower) {
    constexpr int kGroups = kColumns / kGroup;
    const int set = (tile * kTile + product * kColumns) / kSet + lane() % 4;
    const auto of_set = [&](int group, int half) {
      const float* const estimates = sums + group * (kGroup / 2) + 2 * half;
      i32 most = estimate_bits(estimates[0]);
      VQ_UNROLL
      for (int i = 1; i < kSet; ++i) {
        most = larger_estimate(most, estimate_bits(estimates[i / 2 * 4 + i % 2]));
      }
      return (most & ~static_cast<i32>(Sets::kSetMask)) | (set + 4 * group);
    };
    VQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      Largest& row = half == 0 ? upper : lower;
      VQ_UNROLL
      for (int group = 0; group + 1 < kGroups; group += 2) {
        row.take(of_set(group, half), of_set(group + 1, half));
      }
      if (kGroups % 2 == 1) row.take(of_set(kGroups - 1, half));
    }
  }

  const Share& share_;
  int stage_;
  Units units_;
};

}  // namespace vq
