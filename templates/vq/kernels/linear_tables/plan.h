// Plan of a product by tables: inner products of x and all entries are made first, and looked up
// for each output. A block has one chunk of the columns: some sub-vectors for each lane.
#pragma once

#include <vq/plan.h>

namespace vq {

struct LinearTables {
  int threads = 256;
  int outputs_per_warp = 32;
  int sub_vectors_per_lane = 1;
  Combine combine = Combine::kernel;
  int rows_per_block = 8;
  Placement codebook{};

  static constexpr const char* kType = "LinearTables";
  static constexpr const char* kName = "linear_tables";

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearTables;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("outputs_per_warp", &P::outputs_per_warp, Range{1, 4096},
          "output features that a warp serves: up to 32, or a multiple of 4");
    visit("sub_vectors_per_lane", &P::sub_vectors_per_lane, Range{1, 16},
          "sub-vectors of x that each lane of a warp has tables of; 32 times as many are a block's "
          "columns");
    visit("combine", &P::combine, Range{}, Doc::kSumsBlocks);
    visit("rows_per_block", &P::rows_per_block, Range{4, 256}, Doc::kRowsPerBlock);
    visit("codebook", &P::codebook, Range{}, Doc::kCodebook);
  }
};

}  // namespace vq
