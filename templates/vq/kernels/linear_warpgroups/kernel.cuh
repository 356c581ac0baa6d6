// gemm on the tensor cores of Hopper: y = x W^T, W quantized and rebuilt in registers.
//
// A warp group multiplies 64 outputs by all rows of the block over 16 places of k (wgmma), a in
// registers, b in shared memory. Lane (g, c) of a warp looks up octets of
// outputs g (w0..w7) and g + 8 (v0..v7), which are a of two products as they come:
//
//   {w01, v01, w23, v23}, then {w45, v45, w67, v67}
//
// for x has been laid out to match (warpgroup_x.cuh). Residual stages are added up in 16 bits, or,
// scaled, in fp32 and rounded, so that there is one product and not one a stage. The tensor cores
// multiply while the lanes look up the next step: two sets of operands take turns.
#pragma once

#include <vq/kernels/linear_warpgroups/plan.h>
#include <vq/codebook/codebook.cuh>
#include <vq/ops/fragment_codes.cuh>
#include <vq/ops/warpgroup_x.cuh>

namespace vq {

template <class Plan>
class LinearWarpgroupsBlock {
 public:
  using Work = LinearWork<Plan>;
  using Codes = FragmentCodes<Plan>;
  using X = WarpgroupX<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr Rebuilt kRebuilt = kFormat.stage_scales ? Rebuilt::kSum : Rebuilt::kEntry;
  static constexpr int kPasses = looked_up_stages(kFormat);
  static constexpr bool kAhead = kConfig.steps_ahead == 1;
  static constexpr int kTiles = kConfig.outputs_per_warp / fragment_outputs(kConfig);
  static constexpr int kRows = kConfig.rows_per_block;
  static constexpr int kSteps = run_steps(kConfig);
  static constexpr int kRunColumns = run_columns(kConfig);
  // When the next run and chunk are fetched: half-way where sums leave few registers for them.
  static constexpr int kFetchStep = kRows >= 64 ? kSteps / 2 : 0;
  // Of operands: with a single step a run there is no other for the products to take turns with.
  static constexpr int kSets = kSteps > 1 ? 2 : 1;

  VQ_DEVICE explicit LinearWarpgroupsBlock(const LinearArgs& args)
      : args_(args),
        book_(args.weights, Work::kUnits),
        codes_(args.weights.codes, first_loaded()),
        x_(args) {}

  VQ_DEVICE void run() {
    clear_sums();
    if (Work::begin() < Work::end()) {
      multiply_share();
    } else {
      after_last_launch();
    }
    for_each_tile([](float(&sum)[kRows / 2], int) { warpgroup_hold(sum); });
    if (busy()) write();
  }

 private:
  // The columns of this block's split.
  VQ_DEVICE void multiply_share() {
    typename Codes::Run next{};
    codes_.load(next, Work::begin() / kRunColumns);
    const bool switched = book_.switch_to(Work::bound_unit(Work::begin()));
    typename Work::Book::Begun begun{};
    if (switched) begun = book_.begin_load(thread_index());
    after_last_launch();
    x_.fetch(Work::begin());
    if (switched) book_.finish_load(thread_index(), begun);
    stage(0);
    int buffer = 0;
    for (i64 first = Work::begin(); first < Work::end(); first += kConfig.chunk_columns) {
      if (book_.switch_to(Work::bound_unit(first))) {
        sync_block();  // the last unit's entries have been read
        book_.load();
      }
      sync_block();
      // The last chunk fetches itself again: a branch around loads would be one that they wait at.
      const i64 following = first + kConfig.chunk_columns;
      const u64 x = X::operand(buffer);
      for (int run = 0; run < kConfig.chunk_columns / kRunColumns; ++run) {
        const typename Codes::Run now = next;
        multiply(now, first, first + run * kRunColumns,
                 advanced(x, run * kSteps * step_bytes(kConfig)), [&] {
                   codes_.load(next, first / kRunColumns + run + 1);
                   if (run == 0) x_.fetch(following < Work::end() ? following : first);
                 });
      }
      buffer = (buffer + 1) % kChunkBuffers;
      stage(buffer);
    }
    warpgroup_wait<0>();
  }

  // Idle warps have no outputs, but fetch x and are of a group that multiplies.
  VQ_DEVICE static bool busy() {
    if constexpr (kConfig.idle_warps == 0) return true;
    return warp() < kConfig.threads / 32 - kConfig.idle_warps;
  }
  VQ_DEVICE static i64 first_output() {
    return Work::first_output() + warp() * kConfig.outputs_per_warp;
  }
  // Idle warps load the codes of the first, rather than wait at branches around their loads.
  VQ_DEVICE static i64 first_loaded() { return busy() ? first_output() : Work::first_output(); }
  // The output whose entries this lane looks up; `half` is 0 or 1.
  VQ_DEVICE static i64 output_of(int tile, int half) {
    return Codes::output_of(first_output(), tile, half);
  }

  // The fetched x, for products past the next barrier.
  VQ_DEVICE void stage(int buffer) {
    x_.store(buffer);
    fence_shared();
  }

  // What a lane looks up in a step: the entries of each output and stage as they come or, where
  // stages have scales, their sums, rounded to 16 bits.
  struct Octets {
    u32 words[kTiles][2][kPasses][4];
  };

  // A run from `column` on, of the chunk that begins at `first`; x is that of its first product.
  // `fetch` begins the loads of what follows: after the first codes' look-up, since the wait for
  // them would be one for the younger loads too.
  template <class Fetch>
  VQ_DEVICE void multiply(const typename Codes::Run& codes, i64 first, i64 column, u64 x,
                          Fetch fetch) {
    if constexpr (kAhead) {
      // ptxas gives operands the registers of the octets that they are copies of, and a loop's next
      // turn would write those while products of the last are still reading.
      warpgroup_wait<0>();
      look_up(octets_, codes, 0, first, column);
    }
    VQ_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      u32 a[kTiles][2][4];
      warpgroup_wait<kSets - 1>();  // the products that have this set of operands are done
      if constexpr (!kAhead) look_up(octets_, codes, step, first, column);
      if (step == kFetchStep) fetch();
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) take(a[tile], octets_.words[tile]);
      if (kAhead && step + 1 < kSteps) look_up(octets_, codes, step + 1, first, column);
      warpgroup_fence();
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        VQ_UNROLL
        for (int product = 0; product < 2; ++product) {
          warpgroup_mma<kConfig.element, kRows>(
              sum_[tile], a[tile][product],
              advanced(x, step * step_bytes(kConfig) + product * product_bytes(kConfig)));
        }
      }
      warpgroup_commit();
    }
  }

  // The operands of a tile's two products: the sums of the stages, in registers that no product in
  // flight reads.
  VQ_DEVICE static void take(u32 (&a)[2][4], const u32 (&octets)[2][kPasses][4]) {
    VQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      VQ_UNROLL
      for (int i = 0; i < 4; ++i) {
        u32 sum = octets[half][0][i];
        VQ_UNROLL
        for (int pass = 1; pass < kPasses; ++pass) {
          sum = add2<kConfig.element>(sum, octets[half][pass][i]);
        }
        a[i / 2][i % 2 * 2 + half] = warpgroup_copy(sum);
      }
    }
  }

  VQ_DEVICE void look_up(Octets& to, const typename Codes::Run& codes, int step, i64 first,
                         i64 column) const {
    if (!busy()) return;  // its rows of the product are no outputs, whatever they are made of
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      VQ_UNROLL
      for (int half = 0; half < 2; ++half) {
        VQ_UNROLL
        for (int e = 0; e < Codes::kEntries; ++e) {
          const int unit =
              Work::unit_in_chunk(output_of(tile, half), column + Codes::column(step, e), first);
          const u32* const words = codes.words[tile][half];
          VQ_UNROLL
          for (int pass = 0; pass < kPasses; ++pass) {
            rebuild<kRebuilt, kConfig.element>(
                to.words[tile][half][pass] + e * kFormat.vector_size / 2, book_, 0, unit, pass,
                [&](int stage) { return Codes::at(words, step, e, stage); });
          }
        }
      }
    }
  }

  // Accumulator i is the lane's output i / 2 % 2, row 8 (i / 4) + 2 c + i % 2.
  VQ_DEVICE void write() {
    for_each_tile([this](float(&sum)[kRows / 2], int tile) {
      VQ_UNROLL
      for (int i = 0; i < kRows / 2; ++i) {
        const i64 output = output_of(tile, i / 2 % 2);
        const int row = block_y() * kRows + i / 4 * 8 + place_in_group() * 2 + i % 2;
        if (output < Work::kOutFeatures && row < Work::rows(args_)) {
          Work::write(args_, row, output, sum[i]);
        }
      }
    });
  }

  VQ_DEVICE void clear_sums() {
    for_each_tile([](float(&sum)[kRows / 2], int) {
      VQ_UNROLL
      for (int i = 0; i < kRows / 2; ++i) sum[i] = 0.0f;
      warpgroup_hold(sum);
    });
  }

  template <class Visit>
  VQ_DEVICE void for_each_tile(Visit visit) {
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) visit(sum_[tile], tile);
  }

  const LinearArgs& args_;
  typename Work::Book book_;
  Codes codes_;
  X x_;
  Octets octets_{};
  float sum_[kTiles][kRows / 2];
};

template <class Plan>
VQ_DEVICE void linear_warpgroups(const LinearArgs& args) {
  linear_block<Plan, LinearWarpgroupsBlock<Plan>>(args);
}

}  // namespace vq
