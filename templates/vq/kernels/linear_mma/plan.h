// Plan of the mma GEMM: decoded entries are tensor-core operands as they come from the lookup,
// since the column order is free.
#pragma once

#include <vq/layout/linear_runs.h>

namespace vq {

struct LinearMma {
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

  static constexpr const char* kType = "LinearMma";
  static constexpr const char* kName = "linear_mma";
  static constexpr bool kAhead = true;
  static constexpr int kXElements = 8;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearMma;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("outputs_per_warp", &P::outputs_per_warp, Range{1, 4096},
          "output features that a warp serves, a multiple of twice fragment_rows");
    visit("chunk_columns", &P::chunk_columns, Range{1, 1 << 24}, Doc::kChunkColumns);
    visit("splits", &P::splits, Range{1, 4096}, Doc::kColumnSplits);
    visit("combine", &P::combine, kNoCluster, Doc::kSumsSplits);
    visit("warps_along_columns", &P::warps_along_columns, Range{1, 32},
          "warps of a block that share the columns, a power of two");
    visit("rows_per_block", &P::rows_per_block, Range{4, 256},
          "rows of x that a block serves, a multiple of fragment_rows");
    visit("fragment_rows", &P::fragment_rows, Range{4, 8},
          "rows of x that one mma serves, 4 or 8; and twice as many outputs");
    visit("fusion", &P::fusion, Range{},
          "how entries become operands of the tensor core; permute lays x out to match them");
    visit("code_words", &P::code_words, Range{1, 4}, Doc::kCodeWords);
    visit("codebook", &P::codebook, Range{}, Doc::kCodebook);
  }
};

VQ_HD constexpr int outputs_per_block(const LinearConfig<LinearMma>& c) {
  return c.threads / 32 / c.warps_along_columns * c.outputs_per_warp;
}

// With fusions other than permute, x and the entries of fusion shared are tiles of rows of a step's
// 4 octets. Returns the place of octet `octet` of a row, in 16-byte octets, without bank conflicts
// for stores of 2 rows and ldmatrix of 8 octets.
VQ_HD constexpr int tile_place(int row, int octet) { return row * 4 + (octet ^ row / 2 % 4); }

// Fusion shared: tiles per warp, and octets per tile of 8 outputs by the 4 octets of a step.
inline constexpr int kExchangeTiles = 2;
inline constexpr int kExchangeOctets = 32;

// Floats that a block's warps exchange in the reduction after the last column.
VQ_HD constexpr i64 handed_floats(const LinearConfig<LinearMma>& c) {
  if (c.warps_along_columns == 1) return 0;
  const int lane_sums = c.fragment_rows == 4 ? 1 : 4;
  return i64{c.threads} / 2 * (c.outputs_per_warp / fragment_outputs(c)) *
         (c.rows_per_block / c.fragment_rows) * lane_sums;
}

// [run][step][row tile][fragment_rows x 32] u16, steps step_gap_bytes apart (ops/fragment_x.cuh);
// after the columns, the reduction's floats.
VQ_HD constexpr i64 x_bytes(const LinearConfig<LinearMma>& c) {
  const i64 staged =
      i64{c.rows_per_block} * c.chunk_columns * 2 + i64{c.chunk_columns} / 32 * step_gap_bytes(c);
  const i64 handed = handed_floats(c) * 4;
  return staged > handed ? staged : handed;
}
// The tiles of fusion shared: [warp][kExchangeTiles][kExchangeOctets][8] u16.
VQ_HD constexpr i64 beside_bytes(const LinearConfig<LinearMma>& c) {
  if (c.fusion != LinearFusion::shared) return 0;
  return i64{c.threads} / 32 * kExchangeTiles * kExchangeOctets * 16;
}

// True if products keep the octets of lanes apart, in the rows that one row of x leaves free: each
// lane then has the sum of the octets that it looks up, and scales it by its own groups of inputs.
VQ_HD constexpr bool sums_by_lane(const LinearConfig<LinearMma>& c) {
  return c.fragment_rows == 4 && c.fusion == LinearFusion::permute && matrix_rows(c) == 1 &&
         c.rows_per_block == 4 && c.weights.group_inputs > 0 && !c.weights.group_minima &&
         c.weights.num_codebooks == 1 && (scaled_sums(c) || !c.weights.stage_scales);
}

// Requests two blocks of 512 threads per SM, 64 registers per thread, if the grid and shared memory
// allow two and a lane holds few sums and code words, and no scales: left alone, ptxas takes more
// registers and one block fits. 0: no request.
VQ_HD constexpr int resident(const LinearConfig<LinearMma>& c, const Launch& launch) {
  constexpr i64 kSms = 132;         // SMs of the largest sm_90
  constexpr i64 kSmBytes = 233472;  // with so much shared memory each,
  constexpr i64 kOfSystem = 1024;   // reserved by the system per block
  constexpr int kFewSums = 4;
  constexpr int kFewWords = 4;
  const bool few = c.outputs_per_warp * c.rows_per_block <= 32 * kFewSums &&
                   run_words(c) <= kFewWords && c.weights.group_inputs == 0;
  const bool both =
      launch.x * launch.y * launch.z > kSms && 2 * (launch.shared_bytes + kOfSystem) <= kSmBytes;
  return c.threads == 512 && c.fusion == LinearFusion::permute && few && both ? 2 : 0;
}

VQ_HD constexpr CallShape call_shape(const LinearConfig<LinearMma>& c) {
  CallShape shape = call_behind(c, CallShape{}, shared_layout(c).total);
  shape.launches[0].resident = resident(c, shape.launches[0]);
  return shape;
}

}  // namespace vq
