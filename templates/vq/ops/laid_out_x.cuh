// x of the wgmma_large_m dataflow: a pre-pass stores it in the workspace in its shared-memory
// layout (layout/warpgroup_steps.h), and blocks copy it piece by piece.
#pragma once

#include <vq/args/linear.h>
#include <vq/kernels/linear_wgmma_large_m/plan.h>
#include <vq/ops/linear_work.cuh>
#include <vq/ops/step_octets.cuh>

namespace vq {

// A thread takes a row of a step, the octets of four lanes. Threads that follow each other have
// rows that do, whose 16 bytes follow each other.
template <class Plan>
VQ_DEVICE void lay_out_rows(const LinearArgs& args) {
  using Work = LinearWork<Plan>;
  constexpr auto kConfig = Plan::config();
  constexpr int kRows = kConfig.rows_per_block;
  constexpr i64 kSteps = laid_out_steps(kConfig);
  const i64 place = i64{block_x()} * kLayingThreads + thread_index();
  const int row = static_cast<int>(place % kRows);
  const int step = static_cast<int>(place / kRows % kSteps);
  const i64 block = place / kRows / kSteps;
  if (block * kRows >= Work::rows(args)) return;
  U32x4 octets[kStepOctets];
  VQ_UNROLL
  for (int c = 0; c < kStepOctets; ++c) {
    octets[c] = step_octet<Plan>(args, static_cast<int>(block) * kRows + row, step, c);
  }
  u8* const to = args.staged +
                 (block * kSteps + laid_out_place(kConfig, step)) * step_bytes(kConfig) +
                 row * kCoreRowBytes;
  VQ_UNROLL
  for (int p = 0; p < kStepOctets; ++p) {
    store_global(reinterpret_cast<U32x4*>(to + p * k_octet_bytes(kConfig)), k_octet(octets, p));
  }
}

template <class Plan>
VQ_DEVICE void linear_rows_of_x(const LinearArgs& args) {
  for_expert<Plan>(args, block_z(), [](const LinearArgs& own) { lay_out_rows<Plan>(own); });
}

// Pipeline of x for a block's split, piece by piece, within runs (unlike BulkRing). One thread
// issues copies; a stage is refilled after the barrier two pieces later, before which each warp has
// waited for its MMAs.
template <class Plan>
class XRing {
 public:
  using Work = LinearWork<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr int kSteps = piece_steps(kConfig);
  static constexpr int kBytes = piece_bytes(kConfig);
  static constexpr int kAhead = kRingPieces - 2;  // pieces asked for before the one that is awaited

  // The pipeline of the warps that multiply group number `group` along the columns.
  VQ_DEVICE XRing(const LinearArgs& args, int group)
      : from_(args.staged + block_y() * laid_out_row_bytes(kConfig) +
              Work::begin() / 32 * step_bytes(kConfig)),
        count_(static_cast<int>(ceil_div(Work::end() - Work::begin(), i64{kConfig.chunk_columns}) *
                                (chunk_bytes(kConfig) / kBytes))),
        operands_(group * kSteps * step_bytes(kConfig)) {}

  // One thread, before a sync_block for all others.
  VQ_DEVICE void begin() const {
    VQ_UNROLL
    for (int i = 0; i < kRingPieces; ++i) bulk_barrier_begin(barrier(i));
  }
  // Issues the first copies. The thread that initialized the barriers calls it.
  VQ_DEVICE void ask_for_first() const {
    VQ_UNROLL
    for (int i = 0; i < kAhead; ++i) ask_for(i);
  }

  // Operand b of the first MMA of a step of a run. All threads call it in step order, with no MMAs
  // in flight but the previous step's.
  VQ_DEVICE u64 step(int number) {
    if (number % kSteps == 0) {
      ++piece_;
      bulk_barrier_wait(barrier(place()), static_cast<u32>(piece_ / kRingPieces) & 1u);
      sync_block();
      if (thread_index() == 0) ask_for(piece_ + kAhead);
      operand_ = warpgroup_operand(buffer(place()) + operands_, k_octet_bytes(kConfig), kCoreBytes);
    }
    return advanced(operand_, number % kSteps * step_bytes(kConfig));
  }

 private:
  VQ_DEVICE int place() const { return piece_ % kRingPieces; }
  VQ_DEVICE static u64* barrier(int i) {
    return shared_part<u64>(shared_layout(kConfig).beside) + i;
  }
  VQ_DEVICE static u8* buffer(int i) {
    return shared_part<u8>(shared_layout(kConfig).x) + i * kBytes;
  }
  VQ_DEVICE void ask_for(int piece) const {
    if (piece >= count_) return;
    const int place = piece % kRingPieces;
    bulk_barrier_expect(barrier(place), kBytes);
    copy_bulk(buffer(place), from_ + i64{piece} * kBytes, kBytes, barrier(place));
  }

  const u8* from_;
  int count_;
  int operands_;  // from a piece's begin to the group's
  int piece_ = -1;
  u64 operand_ = 0;
};

}  // namespace vq
