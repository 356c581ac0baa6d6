// Plan of a product by warp groups (Hopper): as fragments, but four warps multiply together and at
// once with all rows, which they read from shared memory.
#pragma once

#include <vq/kernels/linear_fragments/plan.h>

namespace vq {

struct LinearWarpgroups {
  int threads = 256;
  int outputs_per_warp = 16;
  int chunk_columns = 1024;
  int splits = 1;
  Combine combine = Combine::kernel;
  int rows_per_block = 8;
  int code_words = 1;
  int idle_warps = 0;
  int steps_ahead = 0;
  Placement codebook{};

  static constexpr const char* kType = "LinearWarpgroups";
  static constexpr const char* kName = "linear_warpgroups";
  // Products have one form: outputs go to lanes as those of fragments with 8 rows.
  static constexpr int fragment_rows = 8;
  static constexpr LinearFusion fusion = LinearFusion::permute;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearWarpgroups;
    visit("threads", &P::threads, Range{32, 1024}, "threads per block, whole warp groups");
    visit("outputs_per_warp", &P::outputs_per_warp, Range{1, 4096},
          "output features that a warp serves, a multiple of 16");
    visit("chunk_columns", &P::chunk_columns, Range{1, 1 << 24}, Doc::kChunkColumns);
    visit("splits", &P::splits, Range{1, 4096}, Doc::kColumnSplits);
    visit("combine", &P::combine, Range{}, Doc::kSumsSplits);
    visit("rows_per_block", &P::rows_per_block, Range{4, 256},
          "rows of x that a block serves, a power of two from 8");
    visit("code_words", &P::code_words, Range{1, 4}, Doc::kCodeWords);
    visit("idle_warps", &P::idle_warps, Range{0, 3},
          "warps of a block that have no outputs, where fewer outputs per block fill the "
          "multiprocessors evenly");
    visit("steps_ahead", &P::steps_ahead, Range{0, 1},
          "steps that are looked up before the one ahead of them is multiplied, for registers");
    visit("codebook", &P::codebook, Range{}, Doc::kCodebook);
  }
};

}  // namespace vq
