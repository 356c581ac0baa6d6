// gemv: y = x W^T for 1..8 rows of x, W quantized.
//
// A warp serves kOutputs output features; a block walks the input features a chunk at a time:
//   1. where the chunk belongs to other codebooks than the last, Switch and Load them;
//   2. the chunk of x arrives in shared memory as fp32;
//   3. each lane takes every 32nd sub-vector of the chunk, decodes it once per output and
//   multiplies
//      it with all rows of x.
// The lanes' sums meet by shuffles at the end, always in the same order.
#pragma once

#include <vq/args/gemv.h>
#include <vq/layout/gemv.h>
#include <vq/codebook/codebook.cuh>
#include <vq/codes.cuh>

namespace vq {

template <class Plan>
class Gemv {
 public:
  static constexpr Element kElement = Plan::config().element;
  static constexpr int kRows = Plan::config().rows;
  static constexpr i64 kOutFeatures = Plan::config().out_features;
  static constexpr i64 kInFeatures = Plan::config().in_features;
  static constexpr int kThreads = Plan::config().threads;
  static constexpr int kOutputs = Plan::config().outputs_per_warp;
  static constexpr int kChunk = Plan::config().chunk_columns;
  static constexpr i64 kUnitRows = Plan::config().unit_rows;
  static constexpr i64 kUnitColumns = Plan::config().unit_columns;
  static constexpr i64 kUnitsPerRow = units_per_row(Plan::config());
  static constexpr i64 kUnits = ceil_div(kOutFeatures, kUnitRows) * kUnitsPerRow;

  VQ_HD static constexpr GemvShared at() { return shared_layout(Plan::config()); }

  struct Weights {
    VQ_HD static constexpr FormatConfig config() { return Plan::config().weights; }
    VQ_HD static constexpr CodebookShared shared() { return at().codebook; }
  };
  static constexpr int kVectorSize = Weights::config().vector_size;
  static constexpr int kBits = Weights::config().index_bits;
  static constexpr int kResiduals = Weights::config().residuals;
  static constexpr i64 kRowWords = row_words(kInFeatures, kVectorSize, kResiduals, kBits);
  using Book = Codebook<Weights, kElement, units_per_chunk(Plan::config()), kThreads>;

  VQ_DEVICE explicit Gemv(const GemvArgs& args)
      : args_(args),
        book_(args.weights, kUnits),
        first_output_((i64{block_x()} * (kThreads / 32) + warp()) * kOutputs) {}

  VQ_DEVICE void run() {
    VQ_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      VQ_UNROLL
      for (int r = 0; r < kRows; ++r) sum_[o][r] = 0.0f;
    }
    for (i64 first = 0; first < kInFeatures; first += kChunk) {
      const int count =
          static_cast<int>(kInFeatures - first < kChunk ? kInFeatures - first : i64{kChunk});
      sync_block();  // the last chunk has been read
      if (book_.switch_to(block_unit(first))) book_.load();
      stage_x(first, count);
      sync_block();
      VQ_UNROLL
      for (int o = 0; o < kOutputs; ++o) {
        if (first_output_ + o < kOutFeatures) multiply(first, count, first_output_ + o, sum_[o]);
      }
    }
    write();
  }

 private:
  // [rows][chunk_columns] in shared memory; see codebook.cuh for why by function.
  VQ_DEVICE static float* staged_x() { return reinterpret_cast<float*>(shared_memory() + at().x); }

  VQ_DEVICE static i64 unit_of(i64 output, i64 column) {
    return output / kUnitRows * kUnitsPerRow + column / kUnitColumns;
  }
  // The first unit of the chunk for the block's first output.
  VQ_DEVICE static i64 block_unit(i64 column) {
    return unit_of(i64{block_x()} * (kThreads / 32) * kOutputs, column);
  }

  VQ_DEVICE void stage_x(i64 first, int count) {
    for (int r = 0; r < kRows; ++r) {
      const u16* from = args_.x + r * kInFeatures + first;
      for (int i = thread_index(); i < count; i += kThreads) {
        store_shared(staged_x() + r * kChunk + i, to_float<kElement>(load_global(from + i)));
      }
    }
  }

  // sum[r] += W[output][chunk] . x[r][chunk] over the sub-vectors of this lane.
  VQ_DEVICE void multiply(i64 first, int count, i64 output, float (&sum)[kRows]) const {
    const u32* row = args_.weights.codes + output * kRowWords;
    const i64 bound = block_unit(first);
    for (int s = lane(); s < count / kVectorSize; s += 32) {
      const i64 column = first + s * kVectorSize;
      float value[kVectorSize];
      book_.decode(value, unit_of(output, column) - bound, [&](int stage) {
        return read_code<kBits>(row, column / kVectorSize * kResiduals + stage,
                                [](const u32* word) { return load_global(word); });
      });
      VQ_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const float* x = staged_x() + r * kChunk + s * kVectorSize;
        VQ_UNROLL
        for (int i = 0; i < kVectorSize; ++i) sum[r] += value[i] * load_shared(x + i);
      }
    }
  }

  VQ_DEVICE void write() {
    VQ_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      const i64 output = first_output_ + o;
      VQ_UNROLL
      for (int r = 0; r < kRows; ++r) {
        float sum = sum_[o][r];
        VQ_UNROLL
        for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
        if (lane() != 0 || output >= kOutFeatures) continue;
        if constexpr (Plan::config().output_scales) {
          sum *= load_global(args_.output_scales + output);
        }
        store_global(args_.y + r * kOutFeatures + output, from_float<kElement>(sum));
      }
    }
  }

  const GemvArgs& args_;
  Book book_;
  i64 first_output_;
  float sum_[kOutputs][kRows];
};

template <class Plan>
VQ_DEVICE void gemv(const GemvArgs& args) {
  Gemv<Plan>(args).run();
}

}  // namespace vq
