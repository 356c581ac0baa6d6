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
  i64 codebook;  // [units_per_chunk][stage][entry][vector_size] u16, where level is shared
  i64 scales;    // [units_per_chunk][stage] fp32
  i64 x;         // [rows][chunk_columns] fp32
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
  const i64 units = units_per_chunk(c);
  at.codebook = carve(
      c.weights.level == Level::kShared ? units * unit_codebook_elements(c.weights) * 2 : i64{0});
  at.scales = carve(c.weights.stage_scales ? units * c.weights.residuals * 4 : i64{0});
  at.x = carve(i64{c.rows} * c.chunk_columns * 4);
  at.total = next;
  return at;
}

}  // namespace vq
