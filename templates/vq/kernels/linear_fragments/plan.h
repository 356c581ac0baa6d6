// Plan of a product by fragments: decoded entries are the tensor core's operands as they come,
// since the order of the columns is free.
#pragma once

#include <vq/plan.h>

namespace vq {

// How entries get from the lanes that look them up to the operands of the tensor core (VQ-LLM,
// section VI-B). permute: they do not move, x is laid out to match. The others leave x in the order
// of its columns: registers exchanges words between lanes, shared sends them through shared memory.
enum class LinearFusion : int { permute, registers, shared };
template <>
struct EnumNames<LinearFusion> {
  static constexpr const char* kType = "vq::LinearFusion";
  static constexpr const char* kNames[] = {"permute", "registers", "shared"};
};

struct LinearFragments {
  int threads = 256;
  int outputs_per_warp = 16;
  int chunk_columns = 1024;
  int splits = 1;
  Combine combine = Combine::kernel;
  int warps_along_columns = 1;
  int rows_per_block = 8;
  int fragment_rows = 8;
  LinearFusion fusion = LinearFusion::permute;
  int code_words = 1;
  Placement codebook{};

  static constexpr const char* kType = "LinearFragments";
  static constexpr const char* kName = "linear_fragments";

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearFragments;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("outputs_per_warp", &P::outputs_per_warp, Range{1, 4096},
          "output features that a warp serves, a multiple of twice fragment_rows");
    visit("chunk_columns", &P::chunk_columns, Range{1, 1 << 24}, Doc::kChunkColumns);
    visit("splits", &P::splits, Range{1, 4096}, Doc::kColumnSplits);
    visit("combine", &P::combine, Range{}, Doc::kSumsSplits);
    visit("warps_along_columns", &P::warps_along_columns, Range{1, 32},
          "warps of a block that share the columns, a power of two");
    visit("rows_per_block", &P::rows_per_block, Range{4, 256},
          "rows of x that a block serves, a multiple of fragment_rows");
    visit("fragment_rows", &P::fragment_rows, Range{4, 8},
          "rows of x that one product serves, 4 or 8; and twice as many outputs");
    visit("fusion", &P::fusion, Range{},
          "how entries become operands of the tensor core; permute lays x out to match them");
    visit("code_words", &P::code_words, Range{1, 4}, Doc::kCodeWords);
    visit("codebook", &P::codebook, Range{}, Doc::kCodebook);
  }
};

}  // namespace vq
