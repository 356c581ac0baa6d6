// Compile-time facts of one gemv kernel, and how its block carves shared memory.
//
// A block serves threads / 32 * outputs_per_warp output features and walks the input features in
// chunks. Grid: (blocks of output features).
#pragma once

#include <vq/layout/format.h>

namespace vq {

struct GemvConfig {
  Element element;
  int rows;
  i64 out_features;
  i64 in_features;
  int threads;
  int outputs_per_warp;
  int chunk_columns;
  bool output_scales;
  i64 unit_rows;         // output features that one codebook unit serves
  i64 unit_columns;      // input features that one codebook unit serves
  FormatConfig weights;  // unit_elements is not used: unit_columns says it
};

VQ_HD constexpr int outputs_per_block(const GemvConfig& c) {
  return c.threads / 32 * c.outputs_per_warp;
}
VQ_HD constexpr i64 units_per_row(const GemvConfig& c) {
  return ceil_div(c.in_features, c.unit_columns);
}
// Units that one chunk of columns touches. A chunk lies within one unit or holds whole units.
VQ_HD constexpr int units_per_chunk(const GemvConfig& c) {
  return static_cast<int>(ceil_div(i64{c.chunk_columns}, c.unit_columns));
}

// Byte offsets into the block's shared memory.
struct GemvShared {
  CodebookShared codebook;
  i64 x;  // [rows][chunk_columns] fp32
  i64 total;
};

VQ_HD constexpr GemvShared shared_layout(const GemvConfig& c) {
  GemvShared at{};
  i64 next = 0;
  const auto carve = [&next](i64 bytes) {
    const i64 begin = next;
    next += ceil_div(bytes, i64{16}) * 16;
    return begin;
  };
  at.codebook = carve_codebook(c.weights, units_per_chunk(c), carve);
  at.x = carve(i64{c.rows} * c.chunk_columns * 4);
  at.total = next;
  return at;
}

}  // namespace vq
