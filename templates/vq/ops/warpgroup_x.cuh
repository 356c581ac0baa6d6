// x of a chunk for the wgmma GEMM: loaded to registers while the last chunk is multiplied, then
// stored as core matrices (layout/linear.h). A thread takes a row of a step, the octet of each
// lane, and transposes it by register naming:
//
//   octets of lanes 0 .. 3    w0 w1 w2 w3 each        to k octet p: word p of all four
//
// A step thus costs 4 loads and 4 stores of 16 bytes and no shuffle. 8 threads that are served at
// once take consecutive steps of x, up to 8 of one row and then other rows: few lines of 128 bytes
// to load, and no bank conflicts of stores (step_bytes).
#pragma once

#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
class WarpgroupX {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kRows = kConfig.rows_per_block;
  static constexpr int kChunkSteps = chunk_steps(kConfig);
  static constexpr int kSteps = run_steps(kConfig);
  static constexpr int kTogether = steps_together(kConfig);
  static constexpr int kPlaces = kRows * kChunkSteps;
  static constexpr int kFetched = fetched_steps(kConfig);
  static constexpr bool kEven = kPlaces % kConfig.threads == 0;

  VQ_DEVICE explicit WarpgroupX(const LinearArgs& args)
      : args_(args), first_row_(block_y() * kRows) {}

  VQ_DEVICE void fetch(i64 first_column) {
    VQ_UNROLL
    for (int i = 0; i < kFetched; ++i) {
      const int place = place_of(i);
      if (!kEven && place >= kPlaces) continue;
      const int step = step_of(place);
      const i64 column = first_column + step / kSteps * run_columns(kConfig);
      VQ_UNROLL
      for (int c = 0; c < kStepOctets; ++c) {
        octets_[i][c] = LinearWork<Plan>::x_octet(
            args_, first_row_ + row_of(place),
            column + octet_column(kStepOctets, run_octets(kConfig), step % kSteps, c));
      }
    }
  }

  // Stores the fetched octets to buffer 0, 1 or 2. fence_shared and sync_block must follow.
  VQ_DEVICE void store(int buffer) const {
    constexpr u64 kCores = x_descriptor(kConfig, 0);
    VQ_UNROLL
    for (int i = 0; i < kFetched; ++i) {
      const int place = place_of(i);
      if (!kEven && place >= kPlaces) continue;
      u8* const to = chunk(buffer) + step_of(place) * step_bytes(kConfig);
      VQ_UNROLL
      for (int p = 0; p < kStepOctets; ++p) {
        const u32 offset = core_row(kCores, row_of(place), p);
        store_shared(reinterpret_cast<U32x4*>(to + offset),
                     {word_of(octets_[i][0], p), word_of(octets_[i][1], p),
                      word_of(octets_[i][2], p), word_of(octets_[i][3], p)});
      }
    }
  }

  // Operand b of the buffer's first MMA. The second MMA's operand is product_bytes later, and the
  // next step's is step_bytes later.
  VQ_DEVICE static u64 operand(int buffer) {
    return warpgroup_operand(chunk(buffer), k_octet_bytes(kConfig), kCoreBytes);
  }

 private:
  VQ_DEVICE static u8* chunk(int buffer) {
    return shared_memory() + shared_layout(kConfig).x + buffer * chunk_bytes(kConfig);
  }
  VQ_DEVICE static int place_of(int i) { return thread_index() + i * kConfig.threads; }
  // kTogether steps and 8 / kTogether rows count fastest, then the other steps of the chunk, then
  // rows: the first kTogether of each 8 / kTogether blocks of so many.
  VQ_DEVICE static int step_of(int place) {
    return place / 8 % (kChunkSteps / kTogether) * kTogether + place % kTogether;
  }
  VQ_DEVICE static int row_of(int place) {
    const int turn = place / 8 / (kChunkSteps / kTogether);
    return turn / kTogether * 8 + place % 8 / kTogether * kTogether + turn % kTogether;
  }

  const LinearArgs& args_;
  int first_row_;
  U32x4 octets_[kFetched][kStepOctets];
};

}  // namespace vq
