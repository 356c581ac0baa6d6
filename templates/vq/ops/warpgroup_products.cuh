// GEMM main loop of the wgmma and wgmma_large_m dataflows, which differ in how x reaches shared
// memory.
//
// wgmma multiplies 64 outputs by all rows of the block over k = 16, with a in registers and b in
// shared memory. Lane (g, c) of a warp looks up octets of outputs g (w0..w7) and g + 8 (v0..v7),
// which are a of two MMAs as they come:
//
//   {w01, v01, w23, v23}, then {w45, v45, w67, v67}
//
// as x has been permuted to match (layout/warpgroup_steps.h). Residual stages are summed before the
// MMA (octet_sums.cuh), so one MMA serves all stages. Tensor cores multiply while lanes look up the
// next step: operands are double-buffered.
#pragma once

#include <vq/layout/warpgroup_steps.h>
#include <vq/ops/fragment_codes.cuh>
#include <vq/ops/octet_sums.cuh>
#include <vq/ops/turned_results.cuh>

namespace vq {

// kFetchStep: of a run, the step behind whose lookups the next loads begin.
template <class Plan, int kFetchStep, class Load = BeginConstant>
class WarpgroupProducts {
 public:
  using Work = LinearWork<Plan>;
  using Codes = FragmentCodes<Plan, Load>;
  using Entries = OctetSums<Plan, Plan::config().byte_sums != 0>;
  static constexpr auto kConfig = Plan::config();
  static constexpr int kSteps = run_steps(kConfig);
  static constexpr bool kAhead = kConfig.prefetch_steps == 1;
  static constexpr int kTiles = kConfig.outputs_per_warp / fragment_outputs(kConfig);
  static constexpr int kRows = kConfig.rows_per_block;
  // Operand buffers: a single step per run has no other to alternate with.
  static constexpr int kSets = kSteps > 1 ? 2 : 1;
  // Groups that share the columns of an output, and the warps of one of them; each has a part of
  // the sums at last.
  static constexpr int kAlong = kConfig.groups_along_columns;
  static constexpr int kOutputWarps = kConfig.threads / 32 / kAlong;
  static constexpr int kPart = kRows / 2 / kAlong;

  VQ_DEVICE explicit WarpgroupProducts(const LinearArgs& args)
      : args_(args), entries_(args), codes_(args.weights.codes, first_loaded()) {}

  VQ_DEVICE Entries& entries() { return entries_; }
  VQ_DEVICE const Codes& codes() const { return codes_; }

  VQ_DEVICE void clear() {
    for_each_tile([](float(&sum)[kRows / 2], int) {
      VQ_UNROLL
      for (int i = 0; i < kRows / 2; ++i) sum[i] = 0.0f;
      warpgroup_hold(sum);
    });
  }

  // A run from `column` on, of the chunk that begins at `first`. x_of(step) is operand b of a
  // step's first product, asked for just before it. `fetch` begins the loads of what follows: after
  // the first codes' look-up, since the wait for them would be one for the younger loads too.
  template <class X, class Fetch>
  VQ_DEVICE void multiply(const typename Codes::Run& codes, i64 first, i64 column, X x_of,
                          Fetch fetch) {
    Factors factors;
    make_factors(factors, codes, column);
    if constexpr (kAhead) {
      // ptxas gives operands the registers of the octets that they are copies of, and a loop's next
      // turn would write those while products of the last are still reading.
      warpgroup_wait<0>();
      look_up(octets_, codes, factors, 0, first, column);
    }
    VQ_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      u32 a[kTiles][2][4];
      warpgroup_wait<kSets - 1>();  // the products that have this set of operands are done
      if constexpr (!kAhead) look_up(octets_, codes, factors, step, first, column);
      if (step == kFetchStep) fetch();
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) take(a[tile], octets_.of_outputs[tile]);
      if (kAhead && step + 1 < kSteps) look_up(octets_, codes, factors, step + 1, first, column);
      const u64 x = x_of(step);
      warpgroup_fence();
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        VQ_UNROLL
        for (int product = 0; product < 2; ++product) {
          warpgroup_mma<kConfig.element, kRows>(sum_[tile], a[tile][product],
                                                advanced(x, product * product_bytes(kConfig)));
        }
      }
      warpgroup_commit();
    }
  }

  // Writes the results. Call it after the last MMA.
  VQ_DEVICE void write() {
    for_each_tile([](float(&sum)[kRows / 2], int) { warpgroup_hold(sum); });
    add_groups();
    Work::begin_sums();
    if (!busy()) return;
    if constexpr (kTurned) return write_turned();
    // Sum i is the lane's output i / 2 % 2, row 8 (i / 4) + 2 c + i % 2. Where a result goes and
    // its scale are found once for all rows.
    const int row = block_y() * kRows + place_in_group() * 2;
    typename Work::Results results[kTiles][2];
    for_each_tile([&](float(&)[kRows / 2], int tile) {
      VQ_UNROLL
      for (int half = 0; half < 2; ++half) {
        results[tile][half] = Work::results(args_, row, output_of(tile, half));
      }
    });
    for_each_part([&](float& sum, int, int tile, int i) {
      const auto& to = results[tile][i / 2 % 2];
      Work::write(to, i / 4 * 8 + i % 2, entries_.scaled(sum));
    });
  }

  // The warp's group among those that share outputs.
  VQ_DEVICE static int group() { return kAlong == 1 ? 0 : warp() / kOutputWarps; }

 private:
  using Turned = TurnedResults<Plan, Codes::kTogether>;
  static constexpr bool kTurned = Turned::kTurns && kPart % 4 == 0;
  VQ_DEVICE void write_turned() {
    VQ_UNROLL
    for (int part = 0; part < kAlong; ++part) {
      if (kAlong > 1 && part != group()) continue;
      for_each_tile([&](const float(&sum)[kRows / 2], int tile) {
        const float scale[2] = {Work::output_scale(args_, output_of(tile, 0)),
                                Work::output_scale(args_, output_of(tile, 1))};
        VQ_UNROLL
        for (int first = part * kPart; first < (part + 1) * kPart; first += 4) {
          Turned::write(
              args_, block_y() * kRows + first * 2, first_output() + tile * 16, scale,
              [&](int half, int i) { return entries_.scaled(sum[first + half * 2 + i]); });
        }
      });
    }
  }

  // Idle warps have no outputs, but fetch x and are of a group that multiplies.
  VQ_DEVICE static bool busy() {
    if constexpr (kConfig.fetch_only_warps == 0) return true;
    return warp() < kConfig.threads / 32 - kConfig.fetch_only_warps;
  }
  VQ_DEVICE static i64 first_output() {
    const int number = kAlong == 1 ? warp() : warp() % kOutputWarps;
    return Work::first_output() + number * kConfig.outputs_per_warp;
  }
  // Idle warps load the codes of the first, rather than wait at branches around their loads.
  VQ_DEVICE static i64 first_loaded() { return busy() ? first_output() : Work::first_output(); }
  // The output whose entries this lane looks up; `half` is 0 or 1.
  VQ_DEVICE static i64 output_of(int tile, int half) {
    return Codes::output_of(first_output(), tile, half);
  }

  // A lane's lookups in a step: an octet of each of its outputs.
  struct Octets {
    typename Entries::Octet of_outputs[kTiles][2];
  };

  // The operands of a tile's two products, in registers that no product in flight reads.
  VQ_DEVICE static void take(u32 (&a)[2][4], const typename Entries::Octet (&octets)[2]) {
    VQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      u32 words[4];
      Entries::sum(words, octets[half]);
      VQ_UNROLL
      for (int i = 0; i < 4; ++i) a[i / 2][i % 2 * 2 + half] = warpgroup_copy(words[i]);
    }
  }

  // The scales of the lane's groups of inputs in a run, which all steps share.
  using Factors = typename Entries::Factor[kTiles][2][Codes::kGroups];
  VQ_DEVICE static void make_factors(Factors& to, const typename Codes::Run& codes, i64 column) {
    typename Codes::Factors scales;
    Codes::scales(scales, codes, column);
    VQ_UNROLL
    for (int i = 0; i < kTiles * 2; ++i) {
      VQ_UNROLL
      for (int group = 0; group < Codes::kGroups; ++group) {
        to[i / 2][i % 2][group] = Entries::factor_of_group(scales[i / 2][i % 2][group]);
      }
    }
  }

  VQ_DEVICE void look_up(Octets& to, const typename Codes::Run& codes, const Factors& factors,
                         int step, i64 first, i64 column) const {
    if (!busy()) return;  // its rows of the product are no outputs, whatever they are made of
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      VQ_UNROLL
      for (int half = 0; half < 2; ++half) {
        VQ_UNROLL
        for (int e = 0; e < Codes::kEntries; ++e) {
          const i64 own = column + Codes::column(step, e);
          const int unit = Work::unit_in_chunk(output_of(tile, half), own, first);
          const auto factor = factors[tile][half][Codes::group_of(step, e)];
          const u32* const words = codes.words[tile][half];
          entries_.look_up(to.of_outputs[tile][half], e, unit, factor,
                           [&](int stage) { return Codes::at(words, step, e, stage); });
        }
      }
    }
  }

  // Cross-group reduction: each group stores the other groups' parts of its sums, and adds their
  // stores to its own part in group order.
  VQ_DEVICE void add_groups() {
    if constexpr (kAlong > 1) {
      sync_block();  // all MMAs have read the memory to be overwritten
      VQ_UNROLL
      for (int part = 0; part < kAlong; ++part) {
        if (part == group()) continue;
        for_each_tile([&](float(&sum)[kRows / 2], int tile) {
          VQ_UNROLL
          for (int i = 0; i < kPart; ++i) {
            store_shared(handed_over(part, group(), tile, i), sum[part * kPart + i]);
          }
        });
      }
      sync_block();
      for_each_part([](float& sum, int part, int tile, int i) {
        VQ_UNROLL
        for (int other = 0; other < kAlong; ++other) {
          if (other == part) continue;
          sum += load_shared(handed_over(part, other, tile, i % kPart));
        }
      });
    }
  }
  // Address of sum number `i` of a part from another group.
  VQ_DEVICE static float* handed_over(int part, int group, int tile, int i) {
    constexpr int kThreads = kOutputWarps * 32;
    const int place = part * (kAlong - 1) + (group < part ? group : group - 1);
    return shared_part<float>(shared_layout(kConfig).x) +
           ((place * kTiles + tile) * kPart + i) * kThreads + thread_index() % kThreads;
  }

  // The sums of the group's own part.
  template <class Visit>
  VQ_DEVICE void for_each_part(Visit visit) {
    VQ_UNROLL
    for (int part = 0; part < kAlong; ++part) {
      if (kAlong > 1 && part != group()) continue;
      for_each_tile([&](float(&sum)[kRows / 2], int tile) {
        VQ_UNROLL
        for (int i = 0; i < kPart; ++i) visit(sum[part * kPart + i], part, tile, part * kPart + i);
      });
    }
  }
  template <class Visit>
  VQ_DEVICE void for_each_tile(Visit visit) {
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) visit(sum_[tile], tile);
  }

  const LinearArgs& args_;
  Entries entries_;
  Codes codes_;
  Octets octets_{};
  float sum_[kTiles][kRows / 2];
};

}  // namespace vq
