// GEMV and GEMM on tensor cores: y = x W^T, with W quantized and rebuilt in registers.
//
// mma.m16n8k16 multiplies 16 rows of a by 8 columns of b over k = 16. A dot product allows any
// column order, so fusion permute lays out x to match the entries: a lane (g, c) gives 8
// consecutive columns of an output, an octet w0..w7, straight from the lookup. Other fusions
// restore the column order first (fragment_exchange.cuh): w01 is then word c of octet 0, w23 of
// octet 1, and so on. Two forms (layout/linear.h, fragment_rows):
//
//   halves   a0 = w01, a1 = w23, a2 = w45, a3 = w67 of output g: rows g and g + 8 of the product
//            are two halves of one output. The columns of b are 4 rows of x times the same halves,
//            so the sum is c0 + c3 of the lane (g, row). No register is moved. In the order of the
//            columns a half is 16 of them: a1 = w45, a2 = w23.
//   pairs    outputs g and g + 8 (v0..v7): a = {w01, v01, w23, v23}, then {w45, v45, w67, v67}.
//            Twice the rows of x per MMA, for some moves.
//
// Residual stages share accumulators, or have their own if stages have factors. The x of a chunk is
// in shared memory (fragment_x.cuh). Groups of inputs with scales scale entries; or, of one row,
// the sums that a lane has of its own octets.
#pragma once

#include <vq/kernels/linear_mma/plan.h>
#include <vq/codebook/codebook.cuh>
#include <vq/ops/fragment_codes.cuh>
#include <vq/ops/fragment_x.cuh>
#include <vq/ops/hand_over.cuh>
#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
class LinearMmaBlock {
 public:
  using Work = LinearWork<Plan>;
  using Codes = FragmentCodes<Plan>;
  using X = FragmentX<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr bool kHalves = kConfig.fragment_rows == 4;
  static constexpr int kWarpsAlong = kConfig.warps_along_columns;
  static constexpr int kWarpsAcross = kConfig.threads / 32 / kWarpsAlong;
  static constexpr int kOutputTiles = kConfig.outputs_per_warp / fragment_outputs(kConfig);
  static constexpr int kRowTiles = kConfig.rows_per_block / kConfig.fragment_rows;
  static constexpr int kSteps = run_steps(kConfig);
  static constexpr int kRunColumns = run_columns(kConfig);
  static constexpr int kRuns = kConfig.chunk_columns / kRunColumns;
  static constexpr bool kScaledSums = scaled_sums(kConfig);
  static constexpr bool kByLane = X::kByLane;
  static constexpr Rebuilt kRebuilt = kByLane ? Rebuilt::kEntry : rebuilt(kFormat, kScaledSums);
  // MMAs per step: one per stage, with sums in the same accumulators.
  static constexpr int kPasses = kRebuilt == Rebuilt::kSum ? 1 : kFormat.num_codebooks;
  // Sums that are scaled on their own.
  static constexpr int kStageSums = kScaledSums ? kPasses : 1;
  // Accumulators of one sum, so that products need not wait for each other.
  static constexpr int kChains =
      kStageSums * kOutputTiles * kRowTiles < 4 && kSteps % 2 == 0 ? 2 : 1;

  VQ_DEVICE explicit LinearMmaBlock(const LinearArgs& args)
      : args_(args),
        book_(args.weights, Work::kUnits),
        codes_(args.weights.codes, first_output()),
        first_row_(block_y() * kConfig.rows_per_block) {}

  VQ_DEVICE void run() {
    const int along = warp() / kWarpsAcross;
    typename Codes::Run next;
    codes_.load(next, Work::begin() / kRunColumns + along);
    if (Work::begin() < Work::end() && book_.switch_to(Work::bound_unit(Work::begin()))) {
      book_.load();
    }
    after_last_launch();
    for (i64 first = Work::begin(); first < Work::end(); first += kConfig.chunk_columns) {
      sync_block();  // the last chunk has been read
      if (book_.switch_to(Work::bound_unit(first))) book_.load();
      X::stage(args_, first_row_, first);
      sync_block();
      for (int run = along; run < kRuns; run += kWarpsAlong) {
        const typename Codes::Run now = next;
        const bool last = run + kWarpsAlong >= kRuns;
        codes_.load(next, first / kRunColumns + (last ? kRuns + along : run + kWarpsAlong));
        multiply(now, first, run);
      }
    }
    join_sums();
    constexpr int kLaneSums = kHalves ? 1 : 4;
    hand_over<kWarpsAlong, kWarpsAcross, kOutputTiles * kRowTiles * kLaneSums>(
        shared_part<float>(Work::at().x), [this](int i) -> float& {
          return sum_[0][i / (kRowTiles * kLaneSums)][i / kLaneSums % kRowTiles][i % kLaneSums];
        });
    Work::begin_sums();
    if (along == 0) write();
  }

 private:
  VQ_DEVICE static i64 first_output() {
    return Work::first_output() + warp() % kWarpsAcross * kConfig.outputs_per_warp;
  }
  // The output whose entries this lane looks up; `half` is 0 or 1 with pairs.
  VQ_DEVICE static i64 output_of(int tile, int half) {
    return Codes::output_of(first_output(), tile, half);
  }

  VQ_DEVICE void multiply(const typename Codes::Run& codes, i64 first, int run) {
    typename Codes::Factors factors;
    Codes::scales(factors, codes, first + run * kRunColumns);
    VQ_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      u32 x[kRowTiles][X::kWords];
      VQ_UNROLL
      for (int tile = 0; tile < kRowTiles; ++tile) X::load(x[tile], run, step, tile);
      VQ_UNROLL
      for (int tile = 0; tile < kOutputTiles; ++tile) {
        VQ_UNROLL
        for (int pass = 0; pass < kPasses; ++pass) {
          multiply_step(codes, factors, tile, step, pass, first + run * kRunColumns, first, x,
                        sum_[pass % kStageSums * kChains + step % kChains][tile]);
        }
      }
      constexpr int kGroupSteps = kSteps / Codes::kGroups;
      if constexpr (kByLane) {
        if ((step + 1) % kGroupSteps == 0) {
          add_group(factors, step / kGroupSteps);
        }
      }
    }
  }

  VQ_DEVICE void multiply_step(const typename Codes::Run& codes,
                               const typename Codes::Factors& factors, int tile, int step, int pass,
                               i64 column, i64 first, const u32 (&x)[kRowTiles][X::kWords],
                               float (&sum)[kRowTiles][4]) {
    u32 w[4];
    look_up(w, codes, factors, tile, 0, step, pass, column, first);
    if constexpr (kHalves) {
      constexpr int kSecond = X::kNatural ? 2 : 1;
      VQ_UNROLL
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
        mma_m16n8k16<kConfig.element>(sum[row_tile], {w[0], w[kSecond], w[3 - kSecond], w[3]},
                                      {x[row_tile][0], x[row_tile][1]});
      }
    } else {
      u32 v[4];
      look_up(v, codes, factors, tile, 1, step, pass, column, first);
      VQ_UNROLL
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
        mma_m16n8k16<kConfig.element>(sum[row_tile], {w[0], v[0], w[1], v[1]},
                                      {x[row_tile][0], x[row_tile][1]});
        mma_m16n8k16<kConfig.element>(sum[row_tile], {w[2], v[2], w[3], v[3]},
                                      {x[row_tile][2], x[row_tile][3]});
      }
    }
  }

  // Adds the lane's sums of a group of its run times their scales.
  VQ_DEVICE void add_group(const typename Codes::Factors& factors, int group) {
    VQ_UNROLL
    for (int tile = 0; tile < kOutputTiles; ++tile) {
      float sum = 0.0f;
      VQ_UNROLL
      for (int chain = 0; chain < kChains; ++chain) {
        float(&part)[4] = sum_[chain][tile][0];
        sum = chain == 0 ? part[0] + part[3] : sum + (part[0] + part[3]);
        VQ_UNROLL
        for (int i = 0; i < 4; ++i) part[i] = 0.0f;
      }
      float& of_groups = sum_[kChains][tile][0][0];
      of_groups = fused(factors[tile][0][group], sum, of_groups);
    }
  }

  // The lane's part of one output's operand in a step: of stage `pass`, or the sum of all. `column`
  // is the run's first.
  VQ_DEVICE void look_up(u32 (&words)[4], const typename Codes::Run& codes,
                         const typename Codes::Factors& factors, int tile, int half, int step,
                         int pass, i64 column, i64 first) {
    VQ_UNROLL
    for (int e = 0; e < Codes::kEntries; ++e) {
      const i64 own = column + Codes::column(step, e);
      const int unit = Work::unit_in_chunk(output_of(tile, half), own, first);
      auto factor = factors[tile][half][Codes::group_of(step, e)];
      if constexpr (kRebuilt == Rebuilt::kScaled && !kScaledSums) {
        factor = factor_times(factor, book_.scale(unit, 0));
      }
      // Lookups are by number: byte lookups of tables have not been measured here.
      using Code = Either<Codes::kSignedBytes, SignedByte, u32>;
      rebuild<kRebuilt, kConfig.element>(
          words + e * kFormat.vector_size / 2, book_, 0, unit, pass,
          [&](int stage) -> Code { return Codes::at(codes.words[tile][half], step, e, stage); },
          factor_of<kRebuilt, kConfig.element>(factor));
    }
    exchange_.apply(words);
  }

  // The chains and the scaled stages become one; with halves, accumulator 0 becomes the sum of the
  // lane's output and row.
  VQ_DEVICE void join_sums() {
    if constexpr (kByLane) {
      VQ_UNROLL
      for (int tile = 0; tile < kOutputTiles; ++tile) {
        float sum = sum_[kChains][tile][0][0];
        sum += shuffle_xor(sum, 1);
        sum_[0][tile][0][0] = sum + shuffle_xor(sum, 2);
      }
    }
    VQ_UNROLL
    for (int stage = 0; stage < kStageSums; ++stage) {
      // A split without columns has loaded no scales.
      const bool scaled = kScaledSums && Work::begin() < Work::end();
      const float scale = scaled ? book_.scale(0, stage) : 1.0f;
      for_each_sum([&](float(&sum)[4], int tile, int row_tile) {
        VQ_UNROLL
        for (int i = 0; i < 4; ++i) {
          float joined = sum_[stage * kChains][tile][row_tile][i];
          VQ_UNROLL
          for (int chain = 1; chain < kChains; ++chain) {
            joined += sum_[stage * kChains + chain][tile][row_tile][i];
          }
          if constexpr (kScaledSums) joined *= scale;
          sum[i] = stage == 0 ? joined : sum[i] + joined;
        }
      });
    }
    if constexpr (kHalves) for_each_sum([](float(&sum)[4], int, int) { sum[0] += sum[3]; });
  }

  // Halves: row c. Pairs: accumulator i is the lane's output i / 2, row 2 c + i % 2.
  VQ_DEVICE void write() {
    for_each_sum([this](float(&sum)[4], int tile, int row_tile) {
      const int first_row = first_row_ + row_tile * kConfig.fragment_rows;
      VQ_UNROLL
      for (int i = 0; i < (kHalves ? 1 : 4); ++i) {
        const i64 output = output_of(tile, i / 2);
        const int row = first_row + (kHalves ? place_in_group() : place_in_group() * 2 + i % 2);
        if (output < Work::kOutFeatures && row < Work::rows(args_)) {
          Work::write(args_, row, output, sum[i]);
        }
      }
    });
  }

  // Visits the sums of the first stage and chain.
  template <class Visit>
  VQ_DEVICE void for_each_sum(Visit visit) {
    VQ_UNROLL
    for (int tile = 0; tile < kOutputTiles; ++tile) {
      VQ_UNROLL
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
        visit(sum_[0][tile][row_tile], tile, row_tile);
      }
    }
  }

  const LinearArgs& args_;
  typename Work::Book book_;
  Codes codes_;
  FragmentExchange<Plan> exchange_;
  int first_row_;
  // [stage][chain].., and by lane those of all groups.
  float sum_[kStageSums * kChains + (kByLane ? 1 : 0)][kOutputTiles][kRowTiles][4] = {};
};

template <class Plan>
VQ_DEVICE void linear_mma(const LinearArgs& args) {
  linear_block<Plan, LinearMmaBlock<Plan>>(args);
}

}  // namespace vq
