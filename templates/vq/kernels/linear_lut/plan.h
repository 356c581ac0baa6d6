// Plan of the lut GEMV: inner products of x and all entries are computed first, then looked up for
// each output. A block has one chunk of columns, some sub-vectors per lane.
#pragma once

#include <vq/layout/linear.h>

namespace vq {

struct LinearLut {
  int threads = 256;
  int outputs_per_warp = 32;
  int sub_vectors_per_lane = 1;
  Combine combine = Combine::kernel;
  int rows_per_block = 8;
  Placement codebook{};

  static constexpr const char* kType = "LinearLut";
  static constexpr const char* kName = "linear_lut";
  static constexpr int code_words = 1;
  static constexpr bool kAhead = true;
  static constexpr int kXElements = 1;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearLut;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("outputs_per_warp", &P::outputs_per_warp, Range{1, 4096},
          "output features that a warp serves: up to 32, or a multiple of 4");
    visit("sub_vectors_per_lane", &P::sub_vectors_per_lane, Range{1, 16},
          "sub-vectors of x that each lane of a warp has tables of; 32 times as many are a block's "
          "columns");
    visit("combine", &P::combine, kNoCluster, Doc::kSumsBlocks);
    visit("rows_per_block", &P::rows_per_block, Range{4, 256}, Doc::kRowsPerBlock);
    visit("codebook", &P::codebook, Range{}, Doc::kCodebook);
  }
};

// A chunk is some consecutive sub-vectors per lane, and a block has one chunk.
VQ_HD constexpr int chunk_columns(const LinearConfig<LinearLut>& c) {
  return 32 * c.sub_vectors_per_lane * c.weights.vector_size;
}
VQ_HD constexpr int splits(const LinearConfig<LinearLut>& c) {
  return static_cast<int>(ceil_div(c.in_features, i64{chunk_columns(c)}));
}
// Outputs whose codes a warp has in flight, and whose sums it reduces at once.
VQ_HD constexpr int table_group(const LinearConfig<LinearLut>& c) {
  constexpr int kMost = 16;
  const int power = c.outputs_per_warp & -c.outputs_per_warp;
  return power < kMost ? power : kMost;
}
// A table has the inner products of one row of x, one of the lanes' sub-vectors and one stage: a
// row of 128 bytes per entry, a bank per lane. With byte codes two tables alternate row by row, so
// that a code is a byte of an address (codebook/levels.cuh).
VQ_HD constexpr int row_tables(const LinearConfig<LinearLut>& c) {
  return c.sub_vectors_per_lane * c.weights.num_codebooks;
}
VQ_HD constexpr int table_rows_at_once(const LinearConfig<LinearLut>& c) {
  return c.weights.index_bits == 8 && row_tables(c) % 2 == 0 ? 2 : 1;
}

// Layout with n = table_rows_at_once: [block_rows][row_tables / n][entry][n][lane] fp32.
VQ_HD constexpr i64 x_bytes(const LinearConfig<LinearLut>& c) {
  return i64{block_rows(c)} * row_tables(c) * entries(c.weights) * 32 * 4;
}

// Sums of a group of outputs are written while other warps look up theirs.
VQ_HD constexpr bool writes_at_end(const LinearConfig<LinearLut>&) { return false; }

}  // namespace vq
