// The exact part of append_gemm: of each row the sets of entries that estimates leave are
// compared in fp32 as AppendWideStage compares them, and all entries of rows that estimates leave
// open. The margin is derived at the head of append_gemm_stage.cuh.
#pragma once

#include <vq/kernels/append_gemm/plan.h>
#include <vq/kernels/append_gemm/largest_estimates.cuh>
#include <vq/ops/append_unit_rows.cuh>
#include <vq/ops/append_wide_stage.cuh>

namespace vq {

template <class Share>
class AppendGemmSets {
 public:
  static constexpr auto kConfig = Share::kConfig;
  static constexpr FormatConfig kFormat = Share::kFormat;
  static constexpr Element kElement = kConfig.element;
  static constexpr int kSize = Share::kVectorSize;
  static constexpr int kSet = set_entries(kFormat);
  static constexpr u32 kSetMask = Share::kEntries / kSet - 1;
  static constexpr int kKept = kept_estimates(kConfig);
  static constexpr int kRows = compared_vectors(kConfig, kFormat);  // rows per warp
  static constexpr int kOfLane = lane_estimates(kConfig);
  using Largest = LargestEstimates<kKept>;
  using OfLane = LargestEstimates<kOfLane>;
  using Wide = AppendWideStage<Share>;
  using Narrow = typename Wide::Narrow;

  using Units = AppendUnitRows<Share>;
  using Run = typename Units::Run;  // rows per warp
  using Row = typename Units::Row;

  VQ_DEVICE AppendGemmSets(const Share& share, int stage) : share_(share), stage_(stage) {}

  VQ_DEVICE Row row_of(const Run& run, int number) const {
    return Units::row_of(share_, run, number);
  }
  VQ_DEVICE static float* vector(const Row& row) {
    return Share::row(row.token) + row.vector * kSize;
  }
  VQ_DEVICE static float inverse(float scale) { return inverse_within(scale, kMostScale); }

  // Stores the estimates of row `number` of a run. The lane that owns the row calls it after the
  // last GEMM tile.
  VQ_DEVICE static void keep(int number, const Largest& estimates, float squares, float rest) {
    VQ_UNROLL
    for (int i = 0; i < kKept; ++i) {
      store_shared(kept(i) + number, estimate_value(estimates.bits[i]));
    }
    store_shared(kept(kKept) + number, squares);
    store_shared(kept(kKept + 1) + number, rest);
  }

  // Compares rows from `first` on of a run, one per lane; `largest` is the largest |c|^2 / 2,
  // `offset` B.
  VQ_DEVICE void compare(const Run& run, int first, float largest, float offset) const {
    const int own = first + lane() % kRows;
    Largest estimates;
    VQ_UNROLL
    for (int i = 0; i < kKept; ++i) {
      estimates.bits[i] = estimate_bits(load_shared(kept(i) + own));
    }
    const float squares = load_shared(kept(kKept) + own);
    const float rest = load_shared(kept(kKept + 1) + own);
    Row row = row_of(run, lane() % kRows);
    row.real = row.real && lane() < kRows;
    const Margin margin(estimates.bits[0], offset, squares, rest, largest);
    const bool open = row.real && !(margin.holds() && margin.beyond(estimates.bits[kKept - 1]));
    if (open) store_shared(Share::nearest() + place_of(row), kOpen);
    for (int i = 0; i < kKept - 1; ++i) {
      const bool wanted = row.real && !open && (i == 0 || !margin.beyond(estimates.bits[0]));
      if (!any_of_warp(wanted)) break;
      compare_sets(run, wanted, static_cast<u32>(estimates.bits[0]) & kSetMask, i == 0);
      estimates.drop();
    }
  }

  // All entries, for the rows that are open, one by one; all threads.
  VQ_DEVICE void compare_open() const {
    const int all = share_.work.count * Share::kVectors;
    int turn = 0;
    for (int first = 0; first < all; first += 32) {
      const int own = first + lane();
      const bool open = own < all && own % Share::kVectors < share_.vectors &&
                        load_shared(Share::nearest() + own) == kOpen;
      if (!any_of_warp(open)) continue;
      for (int owner = 0; owner < 32; ++owner) {
        if (shuffle(open ? 1u : 0u, owner) == 0) continue;
        const int place = first + owner;
        float least;
        u32 nearest;
        Wide(share_, stage_)
            .scan(place / Share::kVectors, place % Share::kVectors, warp(), kWarps, least, nearest);
        u32* const parts =
            shared_part<u32>(Share::kShared.search + kAt.partials) + turn++ % 2 * 2 * kWarps;
        if (lane() == 0) {
          store_shared(parts + 2 * warp(), float_bits(least));
          store_shared(parts + 2 * warp() + 1, nearest);
        }
        sync_block();
        if (thread_index() != 0) continue;
        for (int w = 1; w < kWarps; ++w) {
          Narrow::take_nearer(least, nearest, float_from_bits(load_shared(parts + 2 * w)),
                              load_shared(parts + 2 * w + 1));
        }
        store_shared(Share::nearest() + place, nearest);
      }
    }
  }

  // A warp settles several rows at once to keep their entry loads in flight; missing rows repeat
  // the first.
  VQ_DEVICE void settle() const {
    constexpr int kAhead = 8;
    constexpr int kWords = ceil_div(kSize / 2, 32);  // words per lane
    const bool last = stage_ + 1 == Share::kResiduals;
    for (int first = warp(); first < share_.work.count * Share::kVectors;
         first += kWarps * kAhead) {
      Row rows[kAhead];
      u32 words[kAhead][kWords];
      VQ_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const Row row = row_at(first + i * kWarps);
        rows[i] = row;
        const u32 code = load_shared(Share::nearest() + place_of(row));
        if (row.real && lane() == 0) {
          store_shared(Share::codes() + place_of(row) * Share::kResiduals + stage_, code);
        }
        const u32* const entry =
            reinterpret_cast<const u32*>(share_.to.codebooks) +
            (share_.book_of(row.vector, stage_) * Share::kEntries + code) * (kSize / 2);
        VQ_UNROLL
        for (int k = 0; k < kWords; ++k) {
          const int word = lane() + 32 * k;
          words[i][k] = load_global(entry + (word < kSize / 2 ? word : 0));
        }
      }
      if (last) continue;
      VQ_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        if (rows[i].real) subtract(rows[i], words[i]);
      }
    }
  }

 private:
  static constexpr int kWarps = Share::kThreads / 32;
  static constexpr int kChunks = kSize / 8;
  static constexpr int kStride = staged_bytes(kFormat);
  static constexpr ProductsShared kAt = products_shared(kConfig, kFormat);
  static constexpr u32 kOpen = 0xffffffffu;
  static constexpr float kMostSquares = 0x1p30f;  // largest |y|^2 that fits f16
  static constexpr float kMostMargin = 0x1p60f;   // far from where fp32 ends
  // Bound of the inverse scale. fp32 underflow costs a distance 2^-150 per channel, which at this
  // scale is within kLeast of y.
  static constexpr float kMostScale = 0x1p20f;

  // How far the estimate of a set may be below the largest if the set has the nearest entry.
  class Margin {
   public:
    VQ_DEVICE Margin(i32 best, float offset, float squares, float rest, float largest)
        : best_(estimate_value(best)), squares_(squares) {
      const float away = squares + 2.0f * (offset - best_);
      const float reach = 1.01f * larger(away, 0.0f) + 404.0f * rest;
      const float both = squares + reach;
      const float sum = offset + smaller(2.21f * both, 3.0f * largest + 0.25f * squares);
      rounding_ = kOfSum * sum + kOfBoth * both + kMarks * best_ + kLeast;
      product_ = 4.2f * rest * (reach + 1.01f * rounding_);
    }
    VQ_DEVICE bool holds() const { return squares_ <= kMostSquares && rounding_ <= kMostMargin; }
    // estimate < best - 2 |r| R - rounding, without roots. What is below 0 is said to be 0.
    VQ_DEVICE bool beyond(i32 bits) const {
      const float estimate = bits < 0 ? 0.0f : estimate_value(bits);
      const float more = best_ - estimate - rounding_;
      return more > 0.0f && more * more > product_;
    }

   private:
    static constexpr float kOfSum = 2.1f / 262144 * (kSize / 16 + (kSize + 4) / 64.0f);
    static constexpr float kOfBoth = 2.1f / 262144 * ((kSize + 2) / 128.0f + 0.2f);
    static constexpr float kMarks = 2.1f * (kSetMask + 1) / 8388608;
    static constexpr float kLeast = 0x1p-100f;  // what fp32 loses where it ends

    float best_, squares_, rounding_, product_;
  };

  VQ_DEVICE static float* kept(int i) {
    return shared_part<float>(Share::kShared.search + kAt.kept) + i * run_vectors(kConfig);
  }
  VQ_DEVICE int place_of(const Row& row) const {
    return row.token * Share::kVectors + row.vector - share_.begin;
  }
  // Number `place` of the share's, the first where there is none.
  VQ_DEVICE Row row_at(int place) const {
    const int token = place / Share::kVectors;
    const int local = place % Share::kVectors;
    const bool real = token < share_.work.count && local < share_.vectors;
    return {real ? token : 0, share_.begin + (real ? local : 0), real};
  }

  // Entry `i` of a set, as lanes have columns of products.
  VQ_DEVICE static int entry_of(u32 set, int i) {
    const int number = static_cast<int>(set);
    return number / 4 * (4 * kSet) + i / 2 * 8 + number % 4 * 2 + i % 2;
  }

  // A set of each row that wants it, as many lanes for a row as the set has entries: these come to
  // shared memory first, where each lane reads one.
  VQ_DEVICE void compare_sets(const Run& run, bool wanted, u32 set, bool first) const {
    const float scale = share_.scale_of(run.book);
    for (int pass = 0; pass < kPasses; ++pass) {
      const int owner = row_lane(pass);
      const bool mine = shuffle(wanted ? 1u : 0u, owner) != 0;
      const u32 own_set = shuffle(set, owner);
      const bool any = any_of_warp(mine);
      if (any) fetch(run, own_set);
      if (any) {
        const Row row = row_of(run, owner);
        float least = Wide::template distance<1>(
            vector(row), reinterpret_cast<const U32x4*>(staged() + lane() * kStride), scale,
            LoadShared{});
        u32 nearest = static_cast<u32>(entry_of(own_set, lane() % kSet));
        if (!(least < infinity())) {  // never nearer, as for all
          least = infinity();
          nearest = 0;
        }
        VQ_UNROLL
        for (int mask = kSet / 2; mask > 0; mask /= 2) {
          const float distance = shuffle_xor(least, mask);
          const u32 candidate = shuffle_xor(nearest, mask);
          Narrow::take_nearer(least, nearest, distance, candidate);
        }
        if (mine && lane() % kSet == 0) take_nearest(place_of(row), least, nearest, first);
      }
      sync_warp();
    }
  }
  // The lane that has the row which this lane compares.
  static constexpr int kPasses = kRows * kSet / 32;  // passes of 32 entries
  VQ_DEVICE static int row_lane(int pass) { return pass * (32 / kSet) + lane() / kSet; }

  // The entries of a pass: lanes that follow each other copy what does, so that few accesses are
  // made of them.
  VQ_DEVICE void fetch(const Run& run, u32 own_set) const {
    const u8* const book =
        reinterpret_cast<const u8*>(share_.to.codebooks) + run.book * Share::kEntries * (kSize * 2);
    // warpgroup_copy keeps ptxas from computing all chunks' addresses before the GEMM, which needs
    // the registers.
    const u32 first = warpgroup_copy(static_cast<u32>(lane()));
    const u32 entry = static_cast<u32>(entry_of(own_set, lane() % kSet)) * (kSize * 2);
    VQ_UNROLL
    for (u32 i = 0; i < kChunks; ++i) {
      const u32 chunk = 32 * i + first;  // chunk within the pass
      const u32 slot = chunk / kChunks;
      const u32 offset = shuffle(entry, static_cast<int>(slot)) + (chunk - slot * kChunks) * 16;
      copy_constant_async(
          reinterpret_cast<U32x4*>(staged() + slot * kStride + (chunk - slot * kChunks) * 16),
          reinterpret_cast<const U32x4*>(book + offset));
    }
    copy_async_commit();
    copy_async_wait<0>();
    sync_warp();
  }
  VQ_DEVICE static u8* staged() {
    return shared_part<u8>(Share::kShared.search + kAt.sets) + warp() * (32 * kStride);
  }

  VQ_DEVICE static void take_nearest(int place, float least, u32 nearest, bool first) {
    if (!first) {
      Narrow::take_nearer(least, nearest, load_shared(Share::distances() + place),
                          load_shared(Share::nearest() + place));
    }
    store_shared(Share::distances() + place, least);
    store_shared(Share::nearest() + place, nearest);
  }

  template <int kWords>
  VQ_DEVICE void subtract(const Row& row, const u32 (&words)[kWords]) const {
    const float scale = share_.scale_of(share_.book_of(row.vector, stage_));
    VQ_UNROLL
    for (int k = 0; k < kWords; ++k) {
      const int word = lane() + 32 * k;
      if (word >= kSize / 2) continue;
      float taken[2];
      read_entry<kElement>(taken, words[k], scale);
      U32x2* const pair = reinterpret_cast<U32x2*>(vector(row) + 2 * word);
      const U32x2 old = load_shared(pair);
      store_shared(pair, U32x2{float_bits(float_from_bits(old.x) - taken[0]),
                               float_bits(float_from_bits(old.y) - taken[1])});
    }
  }

  const Share& share_;
  int stage_;
};

}  // namespace vq
