// The slices of a product by slices, the shared memory of a block, and the shape of its launch.
#pragma once

#include <vq/kernels/linear_slices/plan.h>
#include <vq/layout/linear.h>

namespace vq {

// A block holds slice_elements of each entry of one stage, and has one chunk of the
// columns:
//
//   split = (chunk * residuals + stage) * (vector_size / slice_elements) + slice
//
// In a step lane l reads code_words words of an output's codes, which are slice_run sub-vectors; x
// of a lane's sub-vectors of a step goes by accesses of up to 16 bytes, lanes side by side.
VQ_HD constexpr int chunk_columns(const LinearConfig<LinearSlices>& c) {
  return c.columns_per_block;
}
VQ_HD constexpr int splits(const LinearConfig<LinearSlices>& c) {
  return static_cast<int>(ceil_div(c.in_features, i64{c.columns_per_block})) * c.weights.residuals *
         c.entry_slices;
}
VQ_HD constexpr int slice_elements(const LinearConfig<LinearSlices>& c) {
  return c.weights.vector_size / c.entry_slices;
}
VQ_HD constexpr int slice_bytes(const LinearConfig<LinearSlices>& c) {
  return held_bytes(c.weights) / c.entry_slices;
}
VQ_HD constexpr int slice_run(const LinearConfig<LinearSlices>& c) {
  return 32 * c.code_words / (c.weights.residuals * c.weights.index_bits);
}
VQ_HD constexpr int slice_step_columns(const LinearConfig<LinearSlices>& c) {
  return 32 * slice_run(c) * c.weights.vector_size;
}
VQ_HD constexpr int slice_steps(const LinearConfig<LinearSlices>& c) {
  return c.columns_per_block / slice_step_columns(c);
}
// The largest integer that x becomes for int8 entries.
inline constexpr int kSlicePeak = 32767;
// The largest magnitude that a lane's sum of products of integers can have.
VQ_HD constexpr i64 slice_sum(const LinearConfig<LinearSlices>& c) {
  constexpr int kEntryPeak = 127;
  return i64{kSlicePeak} * kEntryPeak * slice_elements(c) * slice_steps(c) * slice_run(c);
}
// Words of x that a slice is multiplied with: fp32, or two integers of 16 bits.
VQ_HD constexpr int slice_x_words(const LinearConfig<LinearSlices>& c) {
  return c.weights.int8_entries ? slice_elements(c) / 2 : slice_elements(c);
}
// Outputs that a warp serves at once: kSliceGroup where its outputs allow it.
inline constexpr int kSliceGroup = 4;
VQ_HD constexpr int slice_group(const LinearConfig<LinearSlices>& c) {
  const int power = c.outputs_per_warp & -c.outputs_per_warp;
  return power < kSliceGroup ? power : kSliceGroup;
}

struct LinearSlicesShared {
  CodebookShared codebook;
  i64 x;       // [block_rows][step][access][lane][word], of slice_run * slice_x_words words a lane
  i64 slices;  // [entry] slices
  i64 peaks;   // of int8 entries: [block_rows][warp] u32, largest magnitudes
  i64 total;
};

VQ_HD constexpr LinearSlicesShared shared_layout(const LinearConfig<LinearSlices>& c) {
  LinearSlicesShared at{};
  Carver carve;
  at.codebook = carve_codebook(c.weights, units_per_chunk(c), carve);
  at.x = carve(i64{block_rows(c)} * slice_steps(c) * 32 * slice_run(c) * slice_x_words(c) * 4);
  at.slices = carve(i64{entries(c.weights)} * slice_bytes(c));
  at.peaks = carve(c.weights.int8_entries ? i64{block_rows(c)} * (c.threads / 32) * 4 : i64{0});
  at.total = carve.next;
  return at;
}

VQ_HD constexpr CallShape call_shape(const LinearConfig<LinearSlices>& c) {
  CallShape shape = linear_shape(c, "linear_slices", shared_layout(c).total, true);
  shape.code_bytes = most(shape.code_bytes, 4 * c.code_words);
  return shape;
}

}  // namespace vq
