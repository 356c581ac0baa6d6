// The tables of a product by tables, the shared memory of a block, and the shape of its launch.
#pragma once

#include <vq/kernels/linear_tables/plan.h>
#include <vq/layout/linear.h>

namespace vq {

// A chunk is some sub-vectors for each lane, which follow each other, and a block has one chunk.
VQ_HD constexpr int chunk_columns(const LinearConfig<LinearTables>& c) {
  return 32 * c.sub_vectors_per_lane * c.weights.vector_size;
}
VQ_HD constexpr int splits(const LinearConfig<LinearTables>& c) {
  return static_cast<int>(ceil_div(c.in_features, i64{chunk_columns(c)}));
}
// Outputs whose codes a warp has in flight, and whose sums it reduces at once.
VQ_HD constexpr int table_group(const LinearConfig<LinearTables>& c) {
  constexpr int kMost = 16;
  const int power = c.outputs_per_warp & -c.outputs_per_warp;
  return power < kMost ? power : kMost;
}
// A table holds the inner products of one row of x, one of the lanes' sub-vectors and one stage:
// a row of 128 bytes an entry, a lane a bank. Where codes are bytes, two tables take turns row by
// row, so that a code is a byte of an address (codebook/shared.cuh).
VQ_HD constexpr int row_tables(const LinearConfig<LinearTables>& c) {
  return c.sub_vectors_per_lane * c.weights.residuals;
}
VQ_HD constexpr int table_rows_at_once(const LinearConfig<LinearTables>& c) {
  return c.weights.index_bits == 8 && row_tables(c) % 2 == 0 ? 2 : 1;
}

struct LinearTablesShared {
  CodebookShared codebook;
  i64 x;  // with n = table_rows_at_once: [block_rows][row_tables / n][entry][n][lane] fp32
  i64 total;
};

VQ_HD constexpr LinearTablesShared shared_layout(const LinearConfig<LinearTables>& c) {
  LinearTablesShared at{};
  Carver carve;
  at.codebook = carve_codebook(c.weights, units_per_chunk(c), carve);
  at.x = carve(i64{block_rows(c)} * row_tables(c) * entries(c.weights) * 32 * 4);
  at.total = carve.next;
  return at;
}

VQ_HD constexpr CallShape call_shape(const LinearConfig<LinearTables>& c) {
  return linear_shape(c, "linear_tables", shared_layout(c).total, true);
}

}  // namespace vq
