// Plan of the wgmma_large_m GEMM (Hopper), for many rows: as wgmma, but a pre-pass lays out x once
// in MMA order and blocks stream its pieces by bulk copies; or each block lays out all of its
// columns at once.
#pragma once

#include <vq/layout/warpgroup_steps.h>

namespace vq {

struct LinearWgmmaLargeM {
  int threads = 512;
  int outputs_per_warp = 16;
  int chunk_columns = 128;
  int splits = 1;
  Combine combine = Combine::kernel;
  int groups_along_columns = 1;
  int prepack_x = 1;
  int rows_per_block = 128;
  int code_words = 1;
  int byte_sums = 0;
  Placement codebook{};

  static constexpr const char* kType = "LinearWgmmaLargeM";
  static constexpr const char* kName = "linear_wgmma_large_m";
  static constexpr bool kAhead = true;
  static constexpr bool kMayCluster = true;
  static constexpr int kXElements = 8;
  // Lanes get outputs and codes as in the mma dataflow with 8 rows.
  static constexpr int fragment_rows = 8;
  static constexpr LinearFusion fusion = LinearFusion::permute;
  static constexpr int fetch_only_warps = 0;
  static constexpr int prefetch_steps = 0;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearWgmmaLargeM;
    visit("threads", &P::threads, Range{32, 1024}, "threads per block, whole warp groups");
    visit("outputs_per_warp", &P::outputs_per_warp, Range{1, 4096},
          "output features that a warp serves, a multiple of 16");
    visit(
        "chunk_columns", &P::chunk_columns, Range{1, 1 << 24},
        "columns after which codebooks may change, whole runs of codes; splits have whole chunks");
    visit("splits", &P::splits, Range{1, 4096}, Doc::kColumnSplits);
    visit("combine", &P::combine, Range{}, Doc::kSumsSplitsOrClusters);
    visit("groups_along_columns", &P::groups_along_columns, Range{1, 4},
          "warp groups that share the columns of an output, a power of two");
    visit("prepack_x", &P::prepack_x, Range{0, 1},
          "1: a pre-pass kernel lays x out; 0: each block lays out all of its columns at once");
    visit("rows_per_block", &P::rows_per_block, Range{4, 256},
          "rows of x that a block serves, a power of two from 8");
    visit("code_words", &P::code_words, Range{1, 4}, Doc::kCodeWords);
    visit("byte_sums", &P::byte_sums, Range{0, 1},
          "1: stages are added up as bytes, of formats whose sums are bytes; 0: as elements");
    visit("codebook", &P::codebook, Range{}, Doc::kCodebook);
  }
};

VQ_HD constexpr int outputs_per_block(const LinearConfig<LinearWgmmaLargeM>& c) {
  return c.threads / 32 / c.groups_along_columns * c.outputs_per_warp;
}
VQ_HD constexpr int step_bytes(const LinearConfig<LinearWgmmaLargeM>& c) {
  return 2 * product_bytes(c);
}

// In a turn each group along the columns has one run. A pipeline stage (piece) is whole steps of
// each group's run: enough MMAs to amortize its barrier. A piece's MMAs overlap the next piece's,
// so a stage is refilled two pieces later.
inline constexpr int kRingPieces = 4;
VQ_HD constexpr int turn_columns(const LinearConfig<LinearWgmmaLargeM>& c) {
  return c.groups_along_columns * run_columns(c);
}
VQ_HD constexpr int piece_steps(const LinearConfig<LinearWgmmaLargeM>& c) {
  constexpr int kMostBytes = 32768;
  int steps = run_steps(c);
  while (steps > 1 && c.groups_along_columns * steps * step_bytes(c) > kMostBytes) steps /= 2;
  return steps;
}
VQ_HD constexpr int piece_bytes(const LinearConfig<LinearWgmmaLargeM>& c) {
  return c.groups_along_columns * piece_steps(c) * step_bytes(c);
}

// Output of the pre-pass: per block of rows all steps, piece by piece, in their shared-memory
// layout.
VQ_HD constexpr i64 laid_out_steps(const LinearConfig<LinearWgmmaLargeM>& c) {
  return chunks(c) * chunk_steps(c);
}
VQ_HD constexpr int laid_out_place(const LinearConfig<LinearWgmmaLargeM>& c, int step) {
  const int group = step / run_steps(c) % c.groups_along_columns;
  const int of_run = step % run_steps(c);
  const int steps = piece_steps(c);
  const int of_turn = c.groups_along_columns * run_steps(c);
  return step / of_turn * of_turn + (of_run / steps * c.groups_along_columns + group) * steps +
         of_run % steps;
}
VQ_HD constexpr i64 laid_out_row_bytes(const LinearConfig<LinearWgmmaLargeM>& c) {
  return laid_out_steps(c) * step_bytes(c);
}
VQ_HD constexpr i64 handed_of_slot(const LinearConfig<LinearWgmmaLargeM>& c) {
  return c.prepack_x == 1 ? row_blocks(c) * laid_out_row_bytes(c) : 0;
}
// A thread lays out a row of a step.
inline constexpr int kLayingThreads = 128;

// Groups that share outputs add up their sums at last, each a part of them: the others store that
// one's part, and it loads them.
VQ_HD constexpr int group_sums(const LinearConfig<LinearWgmmaLargeM>& c) {
  return c.outputs_per_warp / fragment_outputs(c) * c.rows_per_block / 2 / c.groups_along_columns;
}
VQ_HD constexpr i64 handed_over_bytes(const LinearConfig<LinearWgmmaLargeM>& c) {
  return i64{4} * (c.groups_along_columns - 1) * group_sums(c) * c.threads;
}

// Steps of a block's split that it lays out itself; then the bytes between steps: a gap of 16
// avoids bank conflicts of threads that store the same row of consecutive steps.
VQ_HD constexpr int share_steps(const LinearConfig<LinearWgmmaLargeM>& c) {
  return static_cast<int>(ceil_div(chunks(c), i64{c.splits})) * chunk_steps(c);
}
VQ_HD constexpr int step_stride(const LinearConfig<LinearWgmmaLargeM>& c) {
  return step_bytes(c) + kCoreRowBytes;
}

// [kRingPieces] pieces and beside them a barrier each, or all steps of a split; and the sums in
// their place.
VQ_HD constexpr i64 x_bytes(const LinearConfig<LinearWgmmaLargeM>& c) {
  const i64 x =
      c.prepack_x == 1 ? i64{kRingPieces} * piece_bytes(c) : i64{share_steps(c)} * step_stride(c);
  return x < handed_over_bytes(c) ? handed_over_bytes(c) : x;
}
VQ_HD constexpr i64 beside_bytes(const LinearConfig<LinearWgmmaLargeM>& c) {
  return c.prepack_x == 1 ? 8 * kRingPieces : 0;
}

VQ_HD constexpr CallShape call_shape(const LinearConfig<LinearWgmmaLargeM>& c) {
  CallShape shape{};
  if (c.prepack_x == 0) return call_behind(c, shape, shared_layout(c).total);
  shape.add({"linear_rows_of_x", "x",
             ceil_div(row_blocks(c) * c.rows_per_block * laid_out_steps(c), i64{kLayingThreads}), 1,
             row_slots(c), kLayingThreads, 0, false, false, 0, 1, together_before(c)});
  return call_behind(c, shape, shared_layout(c).total);
}

}  // namespace vq
