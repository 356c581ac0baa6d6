// GEMV and GEMM in integers: y = x W^T, where an output's entries, summed over the stages, are
// signed bytes with one scale, and x is two signed bytes with a scale per row and group of columns.
//
// A lookup brings one byte per weight, half of the shared-memory traffic that bounds the other
// dataflows, and its sum is an operand of m16n8k32 as it comes: lane (g, c) looks up octet c of
// outputs g (w) and g + 8 (v), whose words are a0 = w0, a1 = v0, a2 = w1, a3 = v1. A dot product
// allows any column order, so x is laid out to match (byte_x.cuh).
//
//   sum over a group   256 (w . high) + (w . low)       two MMAs, or two columns of one
//   over all groups    in fp32, each times the scale of its row
//
// Integer sums are exact: 127 * 128 per column. With scales of groups of inputs an MMA serves one
// row, and its columns 2c and 2c + 1 have the bytes of lane c's octet alone. The lane (g, c) then
// has the sums of its own columns of outputs g and g + 8, which it scales group by group, and of
// their x, where signed entries are raised (byte_table.cuh).
//
// Codes load a run at a time, straight to registers
// (fragment_codes.cuh); x comes by bulk copies of what a pre-pass has made, without barriers of the
// block, or the block makes it.
#pragma once

#include <vq/kernels/linear_int8_mma/plan.h>
#include <vq/ops/byte_table.cuh>
#include <vq/ops/byte_x.cuh>
#include <vq/ops/fragment_codes.cuh>
#include <vq/ops/hand_over.cuh>

namespace vq {

template <class Plan>
class LinearInt8MmaBlock {
 public:
  using Work = LinearWork<Plan>;
  using Codes = FragmentCodes<Plan, StreamConstant>;
  using X = ByteX<Plan>;
  using Chunk = ByteChunk<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr int kAlong = kConfig.warps_along_columns;
  static constexpr int kAcross = multiplying_warps(kConfig) / kAlong;
  static constexpr int kTiles = kConfig.outputs_per_warp / fragment_outputs(kConfig);
  static constexpr int kRowTiles = kConfig.rows_per_block / kConfig.product_rows;
  static constexpr int kSteps = run_steps(kConfig);
  static constexpr int kRunColumns = run_columns(kConfig);
  static constexpr int kGroups = chunk_groups(kConfig);
  static constexpr int kGroupRuns = group_runs(kConfig);
  static constexpr int kProducts = Chunk::kPairs ? 1 : 2;
  static constexpr bool kByLane = by_lane(kConfig);
  static constexpr bool kMasks = ByteTable<Plan>::kMasks;
  static constexpr int kTileSums = Chunk::kPairs ? 2 : 4;  // per lane and tile of outputs and rows
  static_assert(chunk_in_one_unit(kConfig), "");
  static_assert(!kByLane || kRunColumns / 4 * 127 * 32768ll < 1ll << 31, "take_sum() would wrap");

  VQ_DEVICE explicit LinearInt8MmaBlock(const LinearArgs& args)
      : args_(args),
        table_(args),
        codes_(args.weights.codes, first_output()),
        first_row_(block_y() * kConfig.rows_per_block),
        x_(args, first_row_) {}

  VQ_DEVICE void run() {
    if (Work::begin() < Work::end()) {
      multiply_share();
    } else {
      after_last_launch();
    }
    if constexpr (kByLane) join_lanes();
    float scale[kTiles][2];
    VQ_UNROLL
    for (int i = 0; i < kTiles * 2; ++i) {
      scale[i / 2][i % 2] = Work::output_scale(args_, output_of(i / 2, i % 2));
    }
    hand_over<kAlong, kAcross, kTiles * kRowTiles * kTileSums>(
        shared_part<float>(Work::at().x), [this](int i) -> float& {
          return sum_[i / (kRowTiles * kTileSums)][i / kTileSums % kRowTiles][i % kTileSums];
        });
    Work::begin_sums();
    if (along() == 0) write(scale);
  }

 private:
  // Sums of a group of inputs. A lane that scales its own columns also sums x of the group, where
  // entries are raised, and the scaled sums of all groups.
  struct Sums {
    i32 products[kTiles][kRowTiles][kProducts][4] = {};
    i32 x[kRowTiles][kProducts][4] = {};
    float scaled[kByLane ? kTiles : 1][kRowTiles][2] = {};
  };

  VQ_DEVICE static int along() { return warp() / kAcross; }
  VQ_DEVICE static i64 first_output() {
    return Work::first_output() + warp() % kAcross * kConfig.outputs_per_warp;
  }

  // The columns of this block's split.
  VQ_DEVICE void multiply_share() {
    Runs runs;
    VQ_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      codes_.load(runs[turn], Work::begin() / kRunColumns + along() * kGroupRuns + turn);
    }
    table_.switch_to(Work::bound_unit(Work::begin()));
    table_.finish_load(table_.begin_load());
    if constexpr (kMasks) table_.load_masks();
    if constexpr (X::kInRing) {
      if (thread_index() == 0) x_.ring().begin();
    }
    after_last_launch();
    if constexpr (X::kBefore) {
      if (thread_index() == 0) x_.ring().ask_for_first();
    }
    if constexpr (X::kMakers > 0) {
      make_first();
      if (warp() >= kAlong * kAcross) return make_others();
    }
    for (i64 first = Work::begin(); first < Work::end(); first += kConfig.chunk_columns) {
      const bool is_first = first == Work::begin();
      const bool binds = Work::kUnitsPerRow > 1 && table_.switch_to(Work::bound_unit(first));
      const bool meets = !X::kInRing || binds;
      if (meets && !is_first) {
        sync_block();  // the last chunk has been read
      }
      if (binds) table_.finish_load(table_.begin_load());
      if constexpr (!X::kInRing) x_.make(first);
      if (meets || (is_first && X::kMakers == 0)) {
        sync_block();  // what this chunk needs has arrived
      }
      if constexpr (X::kInRing) x_.ring().await();
      for (int group = along(); group < kGroups; group += kAlong) multiply(runs, first, group);
      if constexpr (X::kInRing) {
        x_.ring().advance();
        x_.ring().give_back();
      }
    }
  }

  // With producer warps: all warps make the first chunk; the producers then make the others.
  VQ_DEVICE void make_first() const {
    x_.make(Work::begin());
    sync_block();
  }
  VQ_DEVICE void make_others() {
    constexpr i64 kColumns = kConfig.chunk_columns;
    x_.ring().hand_out();
    for (i64 first = Work::begin() + kColumns; first < Work::end(); first += kColumns) {
      x_.make_in_turn(first);
    }
  }

  // The run that a warp multiplies kTurns after number `run` of a group.
  VQ_DEVICE static i64 run_after(i64 first, int group, int run) {
    const i64 of_chunk = first / kRunColumns;
    const int after = run + kTurns;
    if (after < kGroupRuns) return of_chunk + group * kGroupRuns + after;
    const int then = group + kAlong;
    const int group_after = then < kGroups ? then : kGroups + along();
    return of_chunk + group_after * kGroupRuns + after - kGroupRuns;
  }

  // A group of runs. The next runs' codes load to registers of their own meanwhile; copying a
  // register would wait for its load. All codes are those of the first run if a warp has no more.
  static constexpr int kTurns = kGroupRuns % 2 == 0 ? 2 : 1;
  static constexpr bool kLoadsOn = kGroupRuns > kTurns || kGroups > kAlong ||
                                   chunks(kConfig) > kConfig.splits;
  using Runs = typename Codes::Run[kTurns];
  VQ_DEVICE void multiply(Runs& runs, i64 first, int group) {
    Sums sums;
    for (int run = 0; run < kGroupRuns; run += kTurns) {
      VQ_UNROLL
      for (int turn = 0; turn < kTurns; ++turn) {
        const i64 after = run_after(first, group, run + turn);
        const int of_chunk = group * kGroupRuns + run + turn;
        if constexpr (kTurns == 1) {
          const typename Codes::Run now = runs[0];
          if (kLoadsOn) codes_.load_before(Work::end(), runs[0], after);
          multiply_run(sums, now, first, of_chunk);
        } else {
          multiply_run(sums, runs[turn], first, of_chunk);
          if (kLoadsOn) codes_.load_before(Work::end(), runs[turn], after);
        }
      }
    }
    add_group(sums, group);
  }

  // Run `run` of the chunk that begins at column `first`.
  VQ_DEVICE void multiply_run(Sums& sums, const typename Codes::Run& codes, i64 first,
                              int run) const {
    typename Codes::Factors factors;
    if constexpr (kByLane) Codes::scales(factors, codes, first + run * kRunColumns);
    loads_first();
    VQ_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      u32 x[kRowTiles][Chunk::kWords];
      VQ_UNROLL
      for (int tile = 0; tile < kRowTiles; ++tile) x_.load(x[tile], run * kSteps + step, tile);
      if constexpr (kMasks) {
        constexpr u32 kOnes = 0x01010101u;
        multiply_rows(sums.x, {kOnes, kOnes, kOnes, kOnes}, x);
      }
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile)
        multiply_step(sums.products[tile], codes, tile, step, x);
      if constexpr (kByLane) {
        constexpr int kGroupSteps = kSteps / Codes::kGroups;
        if ((step + 1) % kGroupSteps == 0) scale_columns(sums, factors, step / kGroupSteps);
      }
    }
  }

  // A lane adds the sums of a group of its columns times their scales.
  VQ_DEVICE void scale_columns(Sums& sums, const typename Codes::Factors& factors,
                               int group) const {
    VQ_UNROLL
    for (int row = 0; row < kRowTiles; ++row) {
      u32 raised = 0;
      if constexpr (kMasks) raised = ByteTable<Plan>::kRaised * take_sum(sums.x[row][0], 0);
      VQ_UNROLL
      for (int i = 0; i < kTiles * 2; ++i) {
        const int tile = i / 2, part = i % 2;
        const u32 sum = take_sum(sums.products[tile][row][0], part) - raised;
        float& scaled = sums.scaled[tile][row][part];
        scaled =
            fused(factors[tile][part][group], static_cast<float>(static_cast<i32>(sum)), scaled);
      }
    }
  }
  // The sum of output g or g + 8, of both bytes, modulo 2^32, which begins anew.
  VQ_DEVICE static u32 take_sum(i32 (&sums)[4], int part) {
    const u32 sum = static_cast<u32>(sums[2 * part]) * 256u + static_cast<u32>(sums[2 * part + 1]);
    sums[2 * part] = sums[2 * part + 1] = 0;
    return sum;
  }

  VQ_DEVICE void multiply_step(i32 (&sums)[kRowTiles][kProducts][4],
                               const typename Codes::Run& codes, int tile, int step,
                               const u32 (&x)[kRowTiles][Chunk::kWords]) const {
    u32 a[4];
    VQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      VQ_UNROLL
      for (int e = 0; e < Codes::kEntries; ++e) {
        u32 words[kFormat.vector_size / 4];
        table_.add_stages(words, table_.look_up([&](int stage) {
          return Codes::at(codes.words[tile][half], step, e, stage);
        }));
        VQ_UNROLL
        for (int i = 0; i < kFormat.vector_size / 4; ++i) {
          a[(e * kFormat.vector_size / 4 + i) * 2 + half] = words[i];
        }
      }
    }
    multiply_rows(sums, a, x);
  }
  VQ_DEVICE static void multiply_rows(i32 (&sums)[kRowTiles][kProducts][4], const u32 (&a)[4],
                                      const u32 (&x)[kRowTiles][Chunk::kWords]) {
    VQ_UNROLL
    for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
      VQ_UNROLL
      for (int product = 0; product < kProducts; ++product) {
        const u32 b[2] = {x[row_tile][product * 2], x[row_tile][product * 2 + 1]};
        if constexpr (kMasks) {
          mma_m16n8k32_u8_s8(sums[row_tile][product], a, b);
        } else {
          mma_m16n8k32_s8(sums[row_tile][product], a, b);
        }
      }
    }
  }

  // A lane's sum i of a tile: with 8 rows output i / 2, row 2 c + i % 2; with 4 output i, row c,
  // whose two bytes are columns side by side; with 1 output i.
  VQ_DEVICE static int output_part(int i) { return Chunk::kPairs ? i : i / 2; }
  VQ_DEVICE static int row_part(int i) {
    if constexpr (kByLane) return 0;
    return Chunk::kPairs ? place_in_group() : place_in_group() * 2 + i % 2;
  }

  VQ_DEVICE void add_group(const Sums& sums, int group) {
    VQ_UNROLL
    for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
      float scale[kTileSums];
      VQ_UNROLL
      for (int i = 0; i < kTileSums; ++i) {
        scale[i] = table_.scale() * x_.scale(group, row_tile * kConfig.product_rows + row_part(i));
      }
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const auto& products = sums.products[tile][row_tile];
        VQ_UNROLL
        for (int i = 0; i < kTileSums; ++i) {
          if constexpr (kByLane) {
            float& sum = sum_[tile][row_tile][i];
            sum = fused(sums.scaled[tile][row_tile][i], scale[i], sum);
            continue;
          }
          const auto high = static_cast<float>(Chunk::kPairs ? products[0][2 * i] : products[0][i]);
          const auto low = static_cast<float>(Chunk::kPairs ? products[0][2 * i + 1]
                                                            : products[kProducts - 1][i]);
          float& sum = sum_[tile][row_tile][i];
          sum = fused(fused(256.0f, high, low), scale[i], sum);
        }
      }
    }
  }

  // The four lanes of an output add up what each has of its columns.
  VQ_DEVICE void join_lanes() {
    VQ_UNROLL
    for (int i = 0; i < kTiles * kRowTiles * kTileSums; ++i) {
      float& sum = sum_[i / (kRowTiles * kTileSums)][i / kTileSums % kRowTiles][i % kTileSums];
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
    }
  }

  VQ_DEVICE static i64 output_of(int tile, int part) {
    return Codes::output_of(first_output(), tile, part);
  }
  VQ_DEVICE void write(const float (&scale)[kTiles][2]) {
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      VQ_UNROLL
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
        VQ_UNROLL
        for (int i = 0; i < kTileSums; ++i) {
          const i64 output = output_of(tile, output_part(i));
          const int row = first_row_ + row_tile * kConfig.product_rows + row_part(i);
          if (kByLane && place_in_group() != 0) continue;
          if (Work::is_wanted(args_, row, output)) {
            Work::write(args_, row, output, sum_[tile][row_tile][i], scale[tile][output_part(i)]);
          }
        }
      }
    }
  }

  const LinearArgs& args_;
  ByteTable<Plan> table_;
  Codes codes_;
  int first_row_;
  X x_;
  float sum_[kTiles][kRowTiles][kTileSums] = {};
};

template <class Plan>
VQ_DEVICE void linear_int8_mma(const LinearArgs& args) {
  linear_block<Plan, LinearInt8MmaBlock<Plan>>(args);
}

}  // namespace vq
