// gemv by tables of inner products: y = x W^T without rebuilding a weight. A chunk is 32
// sub-vectors of x, one a lane. For each of them and each entry the inner product is made once,
//
//   table [row of x][stage][entry][lane]   fp32: a lane's table lies in a bank of its own
//
// and then serves all outputs of the block: a code costs one 4-byte lookup that no other lane
// conflicts with, and stands for vector_size weights. (The codebook-centric dataflow of VQ-LLM
// VI-A taken to its end; VecInfer's and MILLION's score table is the same for keys.) A lane's sums
// of the warp's outputs meet by a transposing reduction once all chunks are done.
#pragma once

#include <vq/codes.cuh>
#include <vq/ops/linear_work.cuh>
#include <vq/transposing_sum.cuh>

namespace vq {

template <class Plan>
class LinearTables {
 public:
  using Work = LinearWork<Plan>;
  static constexpr LinearConfig kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr int kRows = block_rows(kConfig);
  static constexpr int kOutputs = kConfig.outputs_per_warp;
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kBits = kFormat.index_bits;
  static constexpr int kResiduals = kFormat.residuals;
  static constexpr int kEntries = entries(kFormat);
  static constexpr int kWarps = kConfig.threads / 32;
  static_assert(kResiduals * kBits <= 32 && kConfig.chunk_columns == 32 * kVectorSize, "");

  VQ_DEVICE explicit LinearTables(const LinearArgs& args)
      : args_(args),
        book_(args.weights, Work::kUnits),
        first_output_(Work::first_output() + i64{warp()} * kOutputs),
        first_row_(block_y() * kRows) {}

  VQ_DEVICE void run() {
    VQ_UNROLL
    for (int r = 0; r < kRows; ++r) {
      VQ_UNROLL
      for (int o = 0; o < kOutputs; ++o) sum_[r][o] = 0.0f;
    }
    for (i64 first = Work::begin(); first < Work::end(); first += kConfig.chunk_columns) {
      u32 codes[kOutputs];
      load_codes(first, codes);  // in flight while the table is made
      sync_block();              // the last chunk's table has been read
      if (book_.switch_to(Work::bound_unit(first))) {
        book_.load();
        sync_block();
      }
      make_table(first);
      sync_block();
      look_up(codes);
    }
    write();
  }

 private:
  VQ_DEVICE static float* table() {
    return reinterpret_cast<float*>(shared_memory() + Work::at().x);
  }

  // The codes of all stages of this lane's sub-vector, of each of the warp's outputs.
  VQ_DEVICE void load_codes(i64 first, u32 (&codes)[kOutputs]) const {
    const i64 sub_vector = first / kVectorSize + lane();
    const bool inside = sub_vector < Work::kInFeatures / kVectorSize;
    VQ_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      const i64 output = first_output_ + o;
      codes[o] = 0;
      if (inside && output < Work::kOutFeatures) {
        codes[o] = read_code<kBits * kResiduals>(args_.weights.codes + output * Work::kRowWords,
                                                 sub_vector,
                                                 [](const u32* word) { return load_global(word); });
      }
    }
  }

  // A lane makes its sub-vector's column of the table, a warp every kWarps-th entry.
  VQ_DEVICE void make_table(i64 first) const {
    const i64 column = first + lane() * kVectorSize;
    const bool inside = column < Work::kInFeatures;
    float x[kRows][kVectorSize];
    VQ_UNROLL
    for (int r = 0; r < kRows; ++r) {
      VQ_UNROLL
      for (int i = 0; i < kVectorSize; ++i) {
        x[r][i] = 0.0f;
        if (inside && first_row_ + r < Work::kRows) {
          const u16* row = args_.x + (first_row_ + r) * Work::kInFeatures;
          x[r][i] = to_float<kConfig.element>(load_global(row + column + i));
        }
      }
    }
    const int unit = Work::unit_in_chunk(Work::first_output(), column, first);
    VQ_UNROLL
    for (int stage = 0; stage < kResiduals; ++stage) {
      for (int e = warp(); e < kEntries; e += kWarps) {
        float value[kVectorSize] = {};
        book_.add_stage(value, unit, stage, static_cast<u32>(e));
        VQ_UNROLL
        for (int r = 0; r < kRows; ++r) {
          float product = 0.0f;
          VQ_UNROLL
          for (int i = 0; i < kVectorSize; ++i) product += value[i] * x[r][i];
          store_shared(table() + ((r * kResiduals + stage) * kEntries + e) * 32 + lane(), product);
        }
      }
    }
  }

  VQ_DEVICE void look_up(const u32 (&codes)[kOutputs]) {
    constexpr u32 kMask = (1u << kBits) - 1u;
    VQ_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      VQ_UNROLL
      for (int stage = 0; stage < kResiduals; ++stage) {
        const u32 place = (codes[o] >> (stage * kBits) & kMask) * 32u | static_cast<u32>(lane());
        VQ_UNROLL
        for (int r = 0; r < kRows; ++r) {
          sum_[r][o] += load_shared(table() + (r * kResiduals + stage) * kEntries * 32 + place);
        }
      }
    }
  }

  VQ_DEVICE void write() {
    VQ_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const float sum = transposing_sum<kOutputs>(sum_[r]);
      const i64 output = first_output_ + lane() % kOutputs;
      if (lane() < kOutputs && output < Work::kOutFeatures && first_row_ + r < Work::kRows) {
        Work::write(args_, first_row_ + r, output, sum);
      }
    }
  }

  const LinearArgs& args_;
  typename Work::Book book_;
  i64 first_output_;
  int first_row_;
  float sum_[kRows][kOutputs];
};

template <class Plan>
VQ_DEVICE void linear_tables(const LinearArgs& args) {
  LinearTables<Plan>(args).run();
}

}  // namespace vq
