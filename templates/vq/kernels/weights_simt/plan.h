// Plan of the dequantization of weights: a lane makes 8 columns of one row, one store of 16 bytes.
#pragma once

#include <vq/layout/linear.h>

namespace vq {

struct WeightsSimt {
  int threads = 512;
  int weight_rows = 16;
  int chunk_columns = 4096;
  Placement codebook{};

  static constexpr const char* kType = "WeightsSimt";
  static constexpr const char* kName = "weights_simt";

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = WeightsSimt;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("weight_rows", &P::weight_rows, Range{1, 65536},
          "rows of the weights that a block decodes, aligned to as many");
    visit("chunk_columns", &P::chunk_columns, Range{8, 1 << 24},
          "columns of the weights that a block decodes, a multiple of 8");
    visit("codebook", &P::codebook, Range{}, Doc::kCodebook);
  }
};

// What a kernel knows of its problem; the launch sets the rows.
struct WeightRowsProblem {
  LinearProblem matrix;  // without rows of x
  bool sums_are_bytes;   // entries summed over the stages are signed bytes with one scale

  static constexpr const char* kType = "WeightRowsProblem";
  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    visit("matrix", &WeightRowsProblem::matrix);
    visit("sums_are_bytes", &WeightRowsProblem::sums_are_bytes);
  }
};

// Problem and plan side by side.
struct WeightRowsConfig : LinearConfig<WeightsSimt> {
  bool sums_are_bytes;
};

VQ_HD constexpr WeightRowsConfig configure(const WeightRowsProblem& problem,
                                           const WeightsSimt& plan) {
  return {configure(problem.matrix, plan), problem.sums_are_bytes};
}

// Columns that a lane decodes at a time.
inline constexpr int kDecodedColumns = 8;

VQ_HD constexpr i64 x_bytes(const LinearConfig<WeightsSimt>&) { return 0; }
VQ_HD constexpr int block_rows(const LinearConfig<WeightsSimt>&) { return 0; }
VQ_HD constexpr int outputs_per_block(const LinearConfig<WeightsSimt>& c) { return c.weight_rows; }
VQ_HD constexpr i64 sums_bytes(const LinearConfig<WeightsSimt>&) { return 0; }

// Blocks of rows are aligned in the matrix, so that rows from anywhere may touch one more.
VQ_HD constexpr CallShape call_shape(const WeightRowsConfig& c, i64 rows) {
  CallShape shape{};
  const i64 all = ceil_div(c.out_features, i64{c.weight_rows});
  const i64 touched = ceil_div(rows - 1, i64{c.weight_rows}) + 1;
  shape.add({"weight_dequantize_simt", "", touched < all ? touched : all, chunks(c), 1, c.threads,
             shared_layout(c).total, true, true});
  shape.code_bytes = code_alignment(c.weights);
  if (c.in_features % kDecodedColumns == 0) shape.element_bytes = 2 * kDecodedColumns;
  return shape;
}

}  // namespace vq
