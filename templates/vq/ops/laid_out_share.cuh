// x of a block's split for wgmma_large_m without a pre-pass: the block lays out all of its columns
// in shared memory before the first MMA (layout/warpgroup_steps.h).
//
// A thread takes a row of a step, the octets of four lanes. Consecutive threads take the steps of a
// run, whose octets are contiguous in x; the 16 bytes between steps avoid bank conflicts.
#pragma once

#include <vq/args/linear.h>
#include <vq/kernels/linear_wgmma_large_m/plan.h>
#include <vq/ops/linear_work.cuh>
#include <vq/ops/step_octets.cuh>

namespace vq {

template <class Plan>
class LaidOutShare {
 public:
  using Work = LinearWork<Plan>;
  static constexpr auto kConfig = Plan::config();

  // `meanwhile` is called while the first loads are on their way. fence_shared and sync_block must
  // follow.
  template <class Meanwhile>
  VQ_DEVICE static void make(const LinearArgs& args, Meanwhile meanwhile) {
    Row rows[kTogether];
    by_turns<kTurns, kTogether>([&](int turn) { load(rows, args, turn); },
                                [&](int turn) { store(rows, turn); }, meanwhile);
  }

  // Operand b of a step's first product, steps counted from the first column of the split.
  VQ_DEVICE static u64 step(int number) {
    return advanced(warpgroup_operand(place(0), k_octet_bytes(kConfig), kCoreBytes),
                    number * step_stride(kConfig));
  }

 private:
  static constexpr int kRows = kConfig.rows_per_block;
  static constexpr int kRunSteps = run_steps(kConfig);
  static constexpr int kAll = share_steps(kConfig) * kRows;
  // Rows per thread, and rows whose loads are in flight together.
  static constexpr int kTurns = ceil_div(kAll, kConfig.threads);
  static constexpr int kTogether = kTurns < 4 ? kTurns : 4;
  struct Row {
    U32x4 octets[kStepOctets];
  };

  VQ_DEVICE static u8* place(int step) {
    return shared_part<u8>(shared_layout(kConfig).x) + step * step_stride(kConfig);
  }
  VQ_DEVICE static int number_of(int turn) { return turn * kConfig.threads + thread_index(); }
  VQ_DEVICE static int row_of(int number) { return number / kRunSteps % kRows; }
  VQ_DEVICE static int step_of(int number) {
    return number / (kRunSteps * kRows) * kRunSteps + number % kRunSteps;
  }
  VQ_DEVICE static bool is_row(int number) {
    return kAll % (kTogether * kConfig.threads) == 0 || number < kAll;
  }

  VQ_DEVICE static void load(Row (&rows)[kTogether], const LinearArgs& args, int turn) {
    const auto first = static_cast<int>(Work::begin() / 32);
    VQ_UNROLL
    for (int t = 0; t < kTogether; ++t) {
      const int number = number_of(turn + t);
      if (!is_row(number)) continue;
      VQ_UNROLL
      for (int c = 0; c < kStepOctets; ++c) {
        rows[t].octets[c] =
            step_octet<Plan>(args, block_y() * kRows + row_of(number), first + step_of(number), c);
      }
    }
  }
  VQ_DEVICE static void store(const Row (&rows)[kTogether], int turn) {
    VQ_UNROLL
    for (int t = 0; t < kTogether; ++t) {
      const int number = number_of(turn + t);
      if (!is_row(number)) continue;
      u8* const to = place(step_of(number)) + row_of(number) * kCoreRowBytes;
      VQ_UNROLL
      for (int p = 0; p < kStepOctets; ++p) {
        store_shared(reinterpret_cast<U32x4*>(to + p * k_octet_bytes(kConfig)),
                     k_octet(rows[t].octets, p));
      }
    }
  }
};

}  // namespace vq
