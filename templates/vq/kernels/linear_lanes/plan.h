// Plan of a product by lanes: each lane decodes sub-vectors of its own and multiplies them with all
// rows in fp32.
#pragma once

#include <vq/plan.h>

namespace vq {

struct LinearLanes {
  int threads = 256;
  int outputs_per_warp = 2;
  int chunk_columns = 1024;
  int splits = 1;
  Combine combine = Combine::kernel;
  int rows_per_block = 8;
  Placement codebook{};

  static constexpr const char* kType = "LinearLanes";
  static constexpr const char* kName = "linear_lanes";

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearLanes;
    visit("threads", &P::threads, Range{32, 1024}, "threads per block");
    visit("outputs_per_warp", &P::outputs_per_warp, Range{1, 4096},
          "output features that a warp serves");
    visit("chunk_columns", &P::chunk_columns, Range{1, 1 << 24},
          "columns of x staged between barriers");
    visit("splits", &P::splits, Range{1, 4096}, "blocks that share the columns of one output");
    visit("combine", &P::combine, Range{},
          "what sums up the splits: a second kernel, or the last block to end, by counters in the "
          "workspace");
    visit("rows_per_block", &P::rows_per_block, Range{4, 256},
          "rows of x that a block serves, a multiple of 4");
    visit("codebook", &P::codebook, Range{}, "where the entries of the codebooks stand");
  }
};

}  // namespace vq
