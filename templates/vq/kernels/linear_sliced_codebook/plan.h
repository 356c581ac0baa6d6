// Plan of a product by slices: for codebooks that no block holds. Each block holds some elements of
// all entries of one stage, has one chunk of the columns, and gives what these add.
#pragma once

#include <vq/layout/linear.h>

namespace vq {

struct LinearSlicedCodebook {
  int threads = 256;
  int outputs_per_warp = 4;
  int columns_per_block = 1024;
  int entry_slices = 1;
  Combine combine = Combine::kernel;
  int rows_per_block = 8;
  int code_words = 1;

  static constexpr const char* kType = "LinearSlicedCodebook";
  static constexpr const char* kName = "linear_sliced_codebook";
  static constexpr bool kAhead = true;
  static constexpr int kXElements = 1;
  // Slices are always in shared memory; no placement applies.
  static constexpr Placement codebook{};

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearSlicedCodebook;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("outputs_per_warp", &P::outputs_per_warp, Range{1, 4096}, Doc::kOutputsPerWarp);
    visit("columns_per_block", &P::columns_per_block, Range{1, 1 << 24},
          "columns of x that a block has, whole steps of its loads of codes");
    visit("entry_slices", &P::entry_slices, Range{1, 16},
          "slices of an entry; a block holds one of them, of 2 bytes or more");
    visit("combine", &P::combine, kNoCluster, Doc::kSumsBlocks);
    visit("rows_per_block", &P::rows_per_block, Range{4, 256}, Doc::kRowsPerBlock);
    visit("code_words", &P::code_words, Range{1, 4}, Doc::kCodeWords);
  }
};

// A block holds slice_elements of each entry of one stage, and has one chunk of columns:
//
//   split = (chunk * residuals + stage) * (vector_size / slice_elements) + slice
//
// In a step lane l reads code_words words of an output's codes: slice_run sub-vectors. It loads
// their x by accesses of up to 16 bytes, with adjacent lanes at adjacent addresses.
VQ_HD constexpr int chunk_columns(const LinearConfig<LinearSlicedCodebook>& c) {
  return c.columns_per_block;
}
VQ_HD constexpr int splits(const LinearConfig<LinearSlicedCodebook>& c) {
  return static_cast<int>(ceil_div(c.in_features, i64{c.columns_per_block})) *
         c.weights.num_codebooks * c.entry_slices;
}
VQ_HD constexpr int slice_elements(const LinearConfig<LinearSlicedCodebook>& c) {
  return c.weights.vector_size / c.entry_slices;
}
VQ_HD constexpr int slice_bytes(const LinearConfig<LinearSlicedCodebook>& c) {
  return held_bytes(c.weights) / c.entry_slices;
}
VQ_HD constexpr int slice_run(const LinearConfig<LinearSlicedCodebook>& c) {
  return 32 * c.code_words / (c.weights.num_codebooks * c.weights.index_bits);
}
VQ_HD constexpr int slice_step_columns(const LinearConfig<LinearSlicedCodebook>& c) {
  return 32 * slice_run(c) * c.weights.vector_size;
}
VQ_HD constexpr int slice_steps(const LinearConfig<LinearSlicedCodebook>& c) {
  return c.columns_per_block / slice_step_columns(c);
}
// The largest integer that x becomes for int8 entries.
inline constexpr int kSlicePeak = 32767;
// Largest magnitude of a lane's sum of integer products.
VQ_HD constexpr i64 slice_sum(const LinearConfig<LinearSlicedCodebook>& c) {
  constexpr int kEntryPeak = 127;
  return i64{kSlicePeak} * kEntryPeak * slice_elements(c) * slice_steps(c) * slice_run(c);
}
// Words of x that a slice is multiplied with: fp32, or two integers of 16 bits.
VQ_HD constexpr int slice_x_words(const LinearConfig<LinearSlicedCodebook>& c) {
  return c.weights.int8_entries ? slice_elements(c) / 2 : slice_elements(c);
}
// Outputs that a warp serves at once: kSliceGroup if its outputs allow it.
inline constexpr int kSliceGroup = 4;
VQ_HD constexpr int slice_group(const LinearConfig<LinearSlicedCodebook>& c) {
  const int power = c.outputs_per_warp & -c.outputs_per_warp;
  return power < kSliceGroup ? power : kSliceGroup;
}

// [block_rows][step][access][lane][word], with slice_run * slice_x_words words per lane.
VQ_HD constexpr i64 x_bytes(const LinearConfig<LinearSlicedCodebook>& c) {
  return i64{block_rows(c)} * slice_steps(c) * 32 * slice_run(c) * slice_x_words(c) * 4;
}
// [entry] slices, whole 16 bytes; behind them, of int8 entries, [block_rows][warp] u32, largest
// magnitudes.
VQ_HD constexpr i64 slices_bytes(const LinearConfig<LinearSlicedCodebook>& c) {
  return ceil_div(i64{entries(c.weights)} * slice_bytes(c), i64{16}) * 16;
}
VQ_HD constexpr i64 beside_bytes(const LinearConfig<LinearSlicedCodebook>& c) {
  const i64 peaks = c.weights.int8_entries ? i64{block_rows(c)} * (c.threads / 32) * 4 : i64{0};
  return slices_bytes(c) + peaks;
}

// Sums of a group of outputs are written while other warps look up theirs.
VQ_HD constexpr bool writes_at_end(const LinearConfig<LinearSlicedCodebook>&) { return false; }

}  // namespace vq
