// Plan of the simt GEMV: each lane decodes its own sub-vectors and multiplies them by all rows in
// fp32.
#pragma once

#include <vq/layout/linear.h>

namespace vq {

struct LinearSimt {
  int threads = 256;
  int outputs_per_warp = 2;
  int chunk_columns = 1024;
  int splits = 1;
  Combine combine = Combine::kernel;
  int rows_per_block = 8;
  Placement codebook{};

  static constexpr const char* kType = "LinearSimt";
  static constexpr const char* kName = "linear_simt";
  static constexpr int code_words = 1;
  static constexpr bool kAhead = false;
  static constexpr int kXElements = 1;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearSimt;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("outputs_per_warp", &P::outputs_per_warp, Range{1, 4096}, Doc::kOutputsPerWarp);
    visit("chunk_columns", &P::chunk_columns, Range{1, 1 << 24}, Doc::kChunkColumns);
    visit("splits", &P::splits, Range{1, 4096}, Doc::kColumnSplits);
    visit("combine", &P::combine, kNoCluster, Doc::kSumsSplits);
    visit("rows_per_block", &P::rows_per_block, Range{4, 256}, Doc::kRowsPerBlock);
    visit("codebook", &P::codebook, Range{}, Doc::kCodebook);
  }
};

// [block_rows][chunk_columns] fp32
VQ_HD constexpr i64 x_bytes(const LinearConfig<LinearSimt>& c) {
  return i64{block_rows(c)} * c.chunk_columns * 4;
}

}  // namespace vq
