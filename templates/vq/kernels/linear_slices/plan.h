// Plan of a product by slices: for codebooks that no block holds. Each block holds some elements of
// all entries of one stage, has one chunk of the columns, and gives what these add.
#pragma once

#include <vq/plan.h>

namespace vq {

struct LinearSlices {
  int threads = 256;
  int outputs_per_warp = 4;
  int columns_per_block = 1024;
  int entry_slices = 1;
  Combine combine = Combine::kernel;
  int rows_per_block = 8;
  int code_words = 1;

  static constexpr const char* kType = "LinearSlices";
  static constexpr const char* kName = "linear_slices";
  // Slices of entries stand in shared memory whatever a placement would say.
  static constexpr Placement codebook{};

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearSlices;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("outputs_per_warp", &P::outputs_per_warp, Range{1, 4096}, Doc::kOutputsPerWarp);
    visit("columns_per_block", &P::columns_per_block, Range{1, 1 << 24},
          "columns of x that a block has, whole steps of its loads of codes");
    visit("entry_slices", &P::entry_slices, Range{1, 16},
          "slices of an entry; a block holds one of them, of 2 bytes or more");
    visit("combine", &P::combine, Range{}, Doc::kSumsBlocks);
    visit("rows_per_block", &P::rows_per_block, Range{4, 256}, Doc::kRowsPerBlock);
    visit("code_words", &P::code_words, Range{1, 4}, Doc::kCodeWords);
  }
};

}  // namespace vq
