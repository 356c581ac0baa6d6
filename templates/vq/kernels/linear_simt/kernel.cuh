// simt GEMV: y = x W^T for few rows of x, with W quantized.
//
// A warp serves kOutputs output features and kRows rows; a block walks its columns a chunk at a
// time:
//   1. where the chunk belongs to other codebooks than the last, Switch and Load them;
//   2. the chunk of x arrives in shared memory as fp32;
//   3. each lane takes every 32nd sub-vector of the chunk, decodes it once per output and
//      multiplies it with all rows of x.
// The lanes' sums meet by shuffles at the end, always in the same order.
#pragma once

#include <vq/kernels/linear_simt/plan.h>
#include <vq/codes.cuh>
#include <vq/ops/group_scale.cuh>
#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
class LinearSimtBlock {
 public:
  using Work = LinearWork<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr int kRows = block_rows(kConfig);
  static constexpr int kOutputs = kConfig.outputs_per_warp;
  static constexpr int kChunk = kConfig.chunk_columns;
  static constexpr int kVectorSize = kConfig.weights.vector_size;

  VQ_DEVICE explicit LinearSimtBlock(const LinearArgs& args)
      : args_(args),
        book_(args.weights, Work::kUnits),
        first_output_(Work::first_output() + i64{warp()} * kOutputs),
        first_row_(block_y() * kRows),
        held_rows_(Work::rows(args) - first_row_ < kRows ? Work::rows(args) - first_row_ : kRows) {}

  VQ_DEVICE void run() {
    for (i64 first = Work::begin(); first < Work::end(); first += kChunk) {
      const i64 left = Work::end() - first;
      const int count = static_cast<int>(left < kChunk ? left : i64{kChunk});
      sync_block();  // the last chunk has been read
      if (book_.switch_to(Work::bound_unit(first))) book_.load();
      stage_x(first, count);
      sync_block();
      VQ_UNROLL
      for (int o = 0; o < kOutputs; ++o) {
        if (first_output_ + o < Work::kOutFeatures) {
          multiply(first, count, first_output_ + o, sum_[o]);
        }
      }
    }
    write();
  }

 private:
  // [rows][chunk_columns] in shared memory; see codebook.cuh for why by function.
  VQ_DEVICE static float* staged_x() { return shared_part<float>(Work::at().x); }

  VQ_DEVICE void stage_x(i64 first, int count) {
    for (int r = 0; r < kRows; ++r) {
      const u16* from = args_.x + (first_row_ + r) * Work::kInFeatures + first;
      for (int i = thread_index(); i < count; i += kConfig.threads) {
        float x = 0.0f;
        if (r < held_rows_) x = to_float<kConfig.element>(load_global(from + i));
        store_shared(staged_x() + r * kChunk + i, x);
      }
    }
  }

  // sum[r] += W[output][chunk] . x[r][chunk] over the sub-vectors of this lane.
  VQ_DEVICE void multiply(i64 first, int count, i64 output, float (&sum)[kRows]) const {
    const u32* row = args_.weights.codes + row_place(Work::kLayout, Work::kRowWords, output);
    const auto load = [row](const u32* word) {
      return load_global(row + word_place(Work::kLayout, word - row));
    };
    for (int s = lane(); s < count / kVectorSize; s += 32) {
      const i64 column = first + s * kVectorSize;
      float value[kVectorSize];
      book_.decode(value, Work::unit_in_chunk(output, column, first), [&](int stage) {
        return read_code<kConfig.weights.index_bits>(
            row, column / kVectorSize * kConfig.weights.num_codebooks + stage, load);
      });
      const auto factor = GroupScale<Plan>::at(args_.weights.codes, output, column);
      VQ_UNROLL
      for (int i = 0; i < kVectorSize; ++i) value[i] = apply_factor(factor, value[i]);
      VQ_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const float* x = staged_x() + r * kChunk + s * kVectorSize;
        VQ_UNROLL
        for (int i = 0; i < kVectorSize; ++i) sum[r] += value[i] * load_shared(x + i);
      }
    }
  }

  VQ_DEVICE void write() {
    Work::begin_sums();
    VQ_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      VQ_UNROLL
      for (int r = 0; r < kRows; ++r) {
        float sum = sum_[o][r];
        VQ_UNROLL
        for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
        const i64 output = first_output_ + o;
        if (lane() == 0 && output < Work::kOutFeatures && r < held_rows_) {
          Work::write(args_, first_row_ + r, output, sum);
        }
      }
    }
  }

  const LinearArgs& args_;
  typename Work::Book book_;
  i64 first_output_;
  int first_row_;
  int held_rows_;  // existing rows of the block
  float sum_[kOutputs][kRows] = {};
};

template <class Plan>
VQ_DEVICE void linear_simt(const LinearArgs& args) {
  linear_block<Plan, LinearSimtBlock<Plan>>(args);
}

}  // namespace vq
