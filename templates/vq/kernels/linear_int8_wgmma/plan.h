// Plan of the int8_wgmma GEMM (Hopper), for many rows: as int8_mma, but a warpgroup multiplies all
// rows of a block. x is converted to bytes once by a pre-pass, or by each block, all of its columns
// at once.
#pragma once

#include <vq/layout/core_matrices.h>
#include <vq/layout/linear_runs.h>

namespace vq {

struct LinearInt8Wgmma {
  int threads = 512;
  int chunk_columns = 256;
  int splits = 1;
  Combine combine = Combine::kernel;
  int prepack_x = 1;
  int rows_per_block = 16;
  int code_words = 4;
  Placement codebook{};

  static constexpr const char* kType = "LinearInt8Wgmma";
  static constexpr const char* kName = "linear_int8_wgmma";
  static constexpr bool kAhead = true;
  static constexpr bool kMayCluster = true;
  static constexpr int kXElements = 8;
  // Lanes get outputs and codes as in the mma dataflow with 8 rows.
  static constexpr int fragment_rows = 8;
  static constexpr LinearFusion fusion = LinearFusion::permute;
  static constexpr int outputs_per_warp = 16;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearInt8Wgmma;
    visit("threads", &P::threads, Range{32, 1024}, "threads per block, whole warp groups");
    visit("chunk_columns", &P::chunk_columns, Range{1, 1 << 24}, Doc::kChunkColumns);
    visit("splits", &P::splits, Range{1, 4096}, Doc::kColumnSplits);
    visit("combine", &P::combine, Range{}, Doc::kSumsSplitsOrClusters);
    visit("prepack_x", &P::prepack_x, Range{0, 1},
          "1: a pre-pass kernel turns x to bytes, which come by bulk copies; 0: each block turns "
          "all of its columns at once");
    visit("rows_per_block", &P::rows_per_block, Range{4, 256},
          "rows of x that a block serves, a power of two from 8 to 128");
    visit("code_words", &P::code_words, Range{1, 4}, Doc::kCodeWords);
    visit("codebook", &P::codebook, Range{}, Doc::kCodebook);
  }
};

// A step is an MMA of 32 columns with x^T as operand b: columns of b for the high bytes of all
// rows, then as many for the low bytes. Core matrices (core_matrices.h) have octets of 16 bytes:
//
//   a step   k 0 .. 15: high of row 0, of row 1 .., low of row 0 .. | k 16 .. 31: the same
//
// A dot product allows any column order: bytes 4c .. of both k octets are lane c's octet of x, so
// that lane c's lookups are its operand.
VQ_HD constexpr int product_columns(const LinearConfig<LinearInt8Wgmma>& c) {
  return 2 * c.rows_per_block;
}
VQ_HD constexpr int k_octet_bytes(const LinearConfig<LinearInt8Wgmma>& c) {
  return product_columns(c) * kCoreRowBytes;
}
VQ_HD constexpr int step_bytes(const LinearConfig<LinearInt8Wgmma>& c) {
  return 2 * k_octet_bytes(c);
}
// Bytes from a step to the next. Lanes of a block that converts x store adjacent steps, whose gap
// avoids bank conflicts.
VQ_HD constexpr int step_stride(const LinearConfig<LinearInt8Wgmma>& c) {
  return step_bytes(c) + (c.prepack_x == 1 ? 0 : kCoreRowBytes);
}
VQ_HD constexpr int chunk_bytes(const LinearConfig<LinearInt8Wgmma>& c) {
  return c.chunk_columns / 32 * step_stride(c);
}
// Chunks in shared memory: with a kernel before, a chunk comes while the last products of the one
// before are still reading theirs, and other warps are behind; else all of the block.
VQ_HD constexpr int staged_chunks(const LinearConfig<LinearInt8Wgmma>& c) {
  return c.prepack_x == 1 ? 3 : static_cast<int>(ceil_div(chunks(c), i64{c.splits}));
}
// Octets of a row that a lane converts to bytes, without a pre-pass.
VQ_HD constexpr int share_octets(const LinearConfig<LinearInt8Wgmma>& c) {
  return static_cast<int>(ceil_div(i64{staged_chunks(c)} * c.chunk_columns, i64{256}));
}

// Output of the pre-pass: per block of rows, whole chunks of bytes; and a scale per row, fp32, from
// the integers 256 high + low to numbers.
VQ_HD constexpr i64 staged_row_bytes(const LinearConfig<LinearInt8Wgmma>& c) {
  return chunks(c) * chunk_bytes(c);
}
VQ_HD constexpr i64 staged_scales(const LinearConfig<LinearInt8Wgmma>& c) {
  return row_blocks(c) * staged_row_bytes(c);
}
VQ_HD constexpr i64 handed_of_slot(const LinearConfig<LinearInt8Wgmma>& c) {
  if (c.prepack_x == 0) return 0;
  return ceil_div(staged_scales(c) + row_blocks(c) * c.rows_per_block * 4, i64{16}) * 16;
}
// A block of the pre-pass converts one row, and a thread the columns of few steps, one if there are
// threads enough: all loads of a row are then in flight together.
VQ_HD constexpr i64 staged_steps(const LinearConfig<LinearInt8Wgmma>& c) {
  return chunks(c) * c.chunk_columns / 32;
}
VQ_HD constexpr int staging_threads(const LinearConfig<LinearInt8Wgmma>& c) {
  constexpr i64 kMost = 1024;
  const i64 warps = ceil_div(staged_steps(c), i64{32});
  return static_cast<int>(warps * 32 < kMost ? warps * 32 : kMost);
}

// Runs of a block's columns at most; then: true if all blocks have a multiple of `runs`.
VQ_HD constexpr int share_runs(const LinearConfig<LinearInt8Wgmma>& c) {
  const i64 of_share = ceil_div(chunks(c), i64{c.splits});
  return static_cast<int>(of_share * c.chunk_columns / run_columns(c));
}
VQ_HD constexpr bool shares_are(const LinearConfig<LinearInt8Wgmma>& c, int multiple) {
  return share_runs(c) % multiple == 0 && chunks(c) % c.splits == 0 &&
         c.in_features % c.chunk_columns == 0;
}
// Runs per lane whose codes are in registers or in flight, between two waits for all MMAs: for a
// short share all are in flight from the start.
VQ_HD constexpr int runs_together(const LinearConfig<LinearInt8Wgmma>& c) {
  constexpr int kMostRows = 16;  // above, sums leave registers for two runs alone
  const int runs = c.prepack_x == 1 ? c.chunk_columns / run_columns(c) : share_runs(c);
  if (runs % 4 == 0 && c.prepack_x == 0 && c.rows_per_block <= kMostRows) return 4;
  return runs % 2 == 0 ? 2 : 1;
}
// 32-bit registers per thread: sums of integers, codes of runs, two sets of operands; addresses and
// lookups.
VQ_HD constexpr int bytegroup_registers(const LinearConfig<LinearInt8Wgmma>& c) {
  constexpr int kBeside = 40;
  return c.rows_per_block + most(runs_together(c), 2) * 2 * run_words(c) + 8 + kBeside;
}

// Chunks; beside them what their ring has, or the scales of rows.
VQ_HD constexpr i64 x_bytes(const LinearConfig<LinearInt8Wgmma>& c) {
  return i64{staged_chunks(c)} * chunk_bytes(c);
}
VQ_HD constexpr i64 beside_bytes(const LinearConfig<LinearInt8Wgmma>& c) {
  return c.prepack_x == 1 ? i64{staged_chunks(c)} * kRingBesideBytes : i64{4} * c.rows_per_block;
}

VQ_HD constexpr CallShape call_shape(const LinearConfig<LinearInt8Wgmma>& c) {
  constexpr int kFewRows = 64;  // row count up to which blocks do not fill an SM
  CallShape shape{};
  if (c.prepack_x == 1) {
    shape.add({"linear_int8_mma_of_x", "x", row_blocks(c) * c.rows_per_block, 1, row_slots(c),
               staging_threads(c), staging_threads(c) / 32 * 4, false, false, 0, 1,
               row_blocks(c) * c.rows_per_block > kFewRows ? together_before(c) : 0});
  }
  return call_behind(c, shape, shared_layout(c).total);
}

}  // namespace vq
