// GEMM in integers on Hopper's tensor cores: y = x W^T, where an output's entries, summed over the
// stages, are signed bytes with one scale, and x is two signed bytes with a scale per row, made by
// a pre-pass (staged_x.cuh) or by the block (share_of_x.cuh).
//
// wgmma multiplies 64 outputs by both bytes of all rows of the block over 32 columns, with a in
// registers and b in shared memory. Lane (g, c) of a warp looks up octet c of outputs g and g + 8,
// whose words are a as they come (linear_int8_mma/kernel.cuh). Operands are double-buffered: tensor
// cores multiply while lanes look up the next step. Prepacked chunks of x come through a bulk-copy
// pipeline. Integer sums are exact, 127 * 128 per column.
#pragma once

#include <vq/kernels/linear_int8_wgmma/plan.h>
#include <vq/ops/bulk_ring.cuh>
#include <vq/ops/byte_table.cuh>
#include <vq/ops/fragment_codes.cuh>
#include <vq/ops/share_of_x.cuh>
#include <vq/ops/staged_x.cuh>
#include <vq/ops/turned_results.cuh>

namespace vq {

template <class Plan>
class LinearInt8WgmmaBlock {
 public:
  using Work = LinearWork<Plan>;
  using Codes = FragmentCodes<Plan, StreamConstant>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr int kRows = kConfig.rows_per_block;
  static constexpr int kSteps = run_steps(kConfig);
  static constexpr int kRunColumns = run_columns(kConfig);
  static constexpr int kChunkRuns = kConfig.chunk_columns / kRunColumns;
  static constexpr int kColumns = product_columns(kConfig);
  // Runs between two waits for all products.
  static constexpr int kTurns = runs_together(kConfig);
  static constexpr bool kLoadsOn = kTurns < share_runs(kConfig);
  using Runs = typename Codes::Run[kTurns];
  static constexpr bool kBefore = kConfig.prepack_x == 1;
  using Ring = BulkRing<staged_chunks(kConfig), chunk_bytes(kConfig), kConfig.threads / 32>;
  using Share = ShareOfX<Plan>;  // without a kernel before

  VQ_DEVICE explicit LinearInt8WgmmaBlock(const LinearArgs& args)
      : args_(args),
        table_(args),
        codes_(args.weights.codes, first_output()),
        ring_(shared_part<u8>(Work::at().x), shared_part<u8>(Work::at().beside),
              kBefore ? args.staged + block_y() * staged_row_bytes(kConfig) +
                            Work::begin() / kConfig.chunk_columns * chunk_bytes(kConfig)
                      : nullptr,
              static_cast<int>(ceil_div(Work::end() - Work::begin(), i64{kConfig.chunk_columns}))) {
  }

  VQ_DEVICE void run() {
    const bool works = Work::begin() < Work::end();
    Runs runs;
    if (works) {
      prepare(runs);
    } else {
      after_last_launch();
    }
    // Cleared after the conversion of x, which uses these registers.
    VQ_UNROLL
    for (int i = 0; i < kColumns / 2; ++i) sum_[i] = 0;
    warpgroup_hold(sum_);
    if (works) multiply_share(runs);
    warpgroup_hold(sum_);
    write();
  }

 private:
  VQ_DEVICE static i64 first_output() {
    return Work::first_output() + warp() * kConfig.outputs_per_warp;
  }

  // The first codes, the codebook, and x or the ring that it comes through.
  VQ_DEVICE void prepare(Runs& runs) {
    VQ_UNROLL
    for (int i = 0; i < kTurns; ++i) codes_.load(runs[i], Work::begin() / kRunColumns + i);
    table_.switch_to(Work::bound_unit(Work::begin()));
    const auto begun = table_.begin_load();
    if constexpr (kBefore) {
      table_.finish_load(begun);
      if (thread_index() == 0) ring_.begin();
      after_last_launch();
      if (thread_index() == 0) ring_.ask_for_first();
    } else {
      after_last_launch();
      Share::make(args_, [&] { table_.finish_load(begun); });
      fence_shared();
    }
    sync_block();
  }

  // The columns of this block's split.
  VQ_DEVICE void multiply_share(Runs& runs) {
    if constexpr (kBefore) {
      multiply_chunks(runs);
    } else {
      multiply_all(runs);
    }
  }
  VQ_DEVICE void multiply_chunks(Runs& runs) {
    for (i64 first = Work::begin(); first < Work::end(); first += kConfig.chunk_columns) {
      ring_.await();
      u64 x = operand(ring_.chunk());
      for (int run = 0; run < kChunkRuns; run += kTurns) {
        multiply(runs, x, first / kRunColumns + run);
        settle();
        x = advanced(x, kTurns * kSteps * step_stride(kConfig));
      }
      ring_.advance();
      ring_.give_back();
    }
  }
  // Multiplies x that is complete in shared memory: as many runs at once as fit, then the rest one
  // by one.
  VQ_DEVICE void multiply_all(Runs& runs) {
    constexpr int kRunBytes = kSteps * step_stride(kConfig);
    const i64 first = Work::begin() / kRunColumns;
    const auto count = static_cast<int>(ceil_div(Work::end(), i64{kRunColumns}) - first);
    u64 x = operand(Share::chunk(Work::begin()));
    int run = 0;
    for (; run + kTurns <= count; run += kTurns) {
      multiply(runs, x, first + run);
      settle();
      x = advanced(x, kTurns * kRunBytes);
    }
    if constexpr (!shares_are(kConfig, kTurns)) {
      VQ_UNROLL
      for (int turn = 0; turn + 1 < kTurns; ++turn) {
        if (run + turn >= count) break;
        Octets octets[2];
        look_up(octets[0], runs[turn], 0);
        multiply_run(octets, 0, runs[turn], x, [](Octets&) {});
        settle();
        x = advanced(x, kRunBytes);
      }
    }
  }
  VQ_DEVICE static u64 operand(u8* x) {
    return warpgroup_operand(x, k_octet_bytes(kConfig), kCoreBytes);
  }
  // Waits for all MMAs at the end of a loop iteration. With some in flight at the back edge ptxas
  // would serialize them (C7513), or reuse the registers that they read.
  VQ_DEVICE static void settle() { warpgroup_wait<0>(); }

  // A lane's lookups in a step: the entries of its two outputs.
  using Table = ByteTable<Plan>;
  using Octets = typename Table::Looked[2][Codes::kEntries];
  VQ_DEVICE void look_up(Octets& to, const typename Codes::Run& codes, int step) const {
    VQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      VQ_UNROLL
      for (int e = 0; e < Codes::kEntries; ++e) {
        to[half][e] = table_.look_up(
            [&](int stage) { return Codes::at(codes.words[0][half], step, e, stage); });
      }
    }
  }

  // kTurns runs from number `run` on; x is operand b of the first step. The next step is looked up
  // before this one is multiplied. Codes come as many runs ahead into registers of their own, and
  // none is copied, which would be waiting for them.
  VQ_DEVICE void multiply(Runs& runs, u64 x, i64 run) {
    Octets octets[2];
    if constexpr (kTurns == 1) {
      const typename Codes::Run now = runs[0];
      look_up(octets[0], now, 0);
      if (kLoadsOn) codes_.load_before(Work::end(), runs[0], run + 1);
      multiply_run(octets, 0, now, x, [](Octets&) {});
    } else {
      look_up(octets[0], runs[0], 0);
      VQ_UNROLL
      for (int turn = 0; turn < kTurns; ++turn) {
        const int first = turn * kSteps;
        multiply_run(octets, first, runs[turn], advanced(x, first * step_stride(kConfig)),
                     [&](Octets& next) {
                       if (turn + 1 < kTurns) look_up(next, runs[turn + 1], 0);
                       if (kLoadsOn)
                         codes_.load_before(Work::end(), runs[turn], run + kTurns + turn);
                     });
      }
    }
  }

  // Steps `first` and on, the first of which has been looked up; `look_on` looks up what follows
  // the last.
  template <class LookOn>
  VQ_DEVICE void multiply_run(Octets (&octets)[2], int first, const typename Codes::Run& codes,
                              u64 x, LookOn look_on) {
    VQ_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const Octets& looked_up = octets[(first + step) % 2];
      Octets& next = octets[(first + step + 1) % 2];
      if (step + 1 < kSteps) {
        look_up(next, codes, step + 1);
      } else {
        look_on(next);
      }
      loads_first();
      warpgroup_wait<1>();  // the products that have this set of operands are done
      u32 a[4];
      VQ_UNROLL
      for (int half = 0; half < 2; ++half) {
        VQ_UNROLL
        for (int e = 0; e < Codes::kEntries; ++e) {
          u32 words[kFormat.vector_size / 4];
          Table::add_stages(words, looked_up[half][e]);
          VQ_UNROLL
          for (int i = 0; i < kFormat.vector_size / 4; ++i) {
            a[(e * kFormat.vector_size / 4 + i) * 2 + half] = warpgroup_copy(words[i]);
          }
        }
      }
      warpgroup_fence();
      warpgroup_mma_s8<kColumns>(sum_, a, advanced(x, step * step_stride(kConfig)));
      warpgroup_commit();
    }
  }

  // Sum i of the high bytes is the lane's output i / 2 % 2, row 8 (i / 4) + 2 c + i % 2; sums of
  // the low bytes follow. All scales load before the first is used.
  VQ_DEVICE static int row_of(int i) {
    return block_y() * kRows + i / 4 * 8 + place_in_group() * 2 + i % 2;
  }
  VQ_DEVICE float row_scale(int row) const {
    if constexpr (!kBefore) {
      // A split without columns has made none.
      return Work::begin() < Work::end() ? Share::scale(row - block_y() * kRows) : 0.0f;
    }
    return row < Work::rows(args_) ? staged_scale<Plan>(args_, row) : 0.0f;
  }
  VQ_DEVICE void write() const {
    float row_scales[kRows / 4], output_scales[2];
    VQ_UNROLL
    for (int i = 0; i < kRows / 4; ++i) {
      row_scales[i] = row_scale(row_of(i / 2 * 4 + i % 2));
    }
    VQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      output_scales[half] = Work::output_scale(args_, Codes::output_of(first_output(), 0, half));
    }
    Work::begin_sums();
    const auto sum = [&](int i) {
      const auto high = static_cast<float>(sum_[i]);
      const auto low = static_cast<float>(sum_[i + kRows / 2]);
      const float scale = table_.scale() * row_scales[i / 4 * 2 + i % 2];
      return fused(256.0f, high, low) * scale;
    };
    using Turned = TurnedResults<Plan, Codes::kTogether>;
    if constexpr (Turned::kTurns) {
      VQ_UNROLL
      for (int first = 0; first < kRows / 2; first += 4) {
        Turned::write(args_, block_y() * kRows + first * 2, first_output(), output_scales,
                      [&](int half, int i) { return sum(first + half * 2 + i); });
      }
    } else {
      VQ_UNROLL
      for (int i = 0; i < kRows / 2; ++i) {
        const int row = row_of(i);
        const i64 output = Codes::output_of(first_output(), 0, i / 2 % 2);
        if (Work::is_wanted(args_, row, output)) {
          Work::write(args_, row, output, sum(i), output_scales[i / 2 % 2]);
        }
      }
    }
  }

  const LinearArgs& args_;
  ByteTable<Plan> table_;
  Codes codes_;
  Ring ring_;
  i32 sum_[kColumns / 2];
};

template <class Plan>
VQ_DEVICE void linear_int8_wgmma(const LinearArgs& args) {
  linear_block<Plan, LinearInt8WgmmaBlock<Plan>>(args);
}

}  // namespace vq
