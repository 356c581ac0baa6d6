// Plan of a product of bytes: entries are int8 and so are their sums over the stages, x is two
// bytes per element, and the tensor core multiplies integers. Scales of groups of inputs multiply
// sums that a lane has of its own columns.
#pragma once

#include <vq/layout/linear_runs.h>

namespace vq {

struct LinearInt8Mma {
  int threads = 512;
  int outputs_per_warp = 32;
  int chunk_columns = 1024;
  int splits = 1;
  Combine combine = Combine::kernel;
  int warps_along_columns = 1;
  int prepack_x = 0;
  int producer_warps = 0;
  int rows_per_block = 8;
  int product_rows = 8;
  int code_words = 4;
  Placement codebook{};

  static constexpr const char* kType = "LinearInt8Mma";
  static constexpr const char* kName = "linear_int8_mma";
  static constexpr bool kAhead = true;
  static constexpr bool kMayCluster = true;
  static constexpr int kXElements = 8;
  // Lanes get outputs and codes as in the mma dataflow with 8 rows.
  static constexpr int fragment_rows = 8;
  static constexpr LinearFusion fusion = LinearFusion::permute;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearInt8Mma;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("outputs_per_warp", &P::outputs_per_warp, Range{1, 4096},
          "output features that a warp serves, a multiple of 16");
    visit("chunk_columns", &P::chunk_columns, Range{1, 1 << 24}, Doc::kChunkColumns);
    visit("splits", &P::splits, Range{1, 4096}, Doc::kColumnSplits);
    visit("combine", &P::combine, Range{}, Doc::kSumsSplitsOrClusters);
    visit("warps_along_columns", &P::warps_along_columns, Range{1, 32},
          "warps of a block that share the columns of an output, a power of two");
    visit("prepack_x", &P::prepack_x, Range{0, 1},
          "1: a pre-pass kernel turns x to bytes, which come by bulk copies; 0: the warps of a "
          "block do, a chunk at a time");
    visit(
        "producer_warps", &P::producer_warps, Range{0, 8},
        "warps of a block that turn x to bytes while the others multiply; 0: with prepack_x 0 all "
        "do, between barriers");
    visit("rows_per_block", &P::rows_per_block, Range{1, 256},
          "rows of x that a block serves, a multiple of product_rows");
    visit("product_rows", &P::product_rows, Range{1, 8},
          "rows of x that one mma serves: 4, whose two bytes are columns side by side; 8, whose "
          "two bytes are two mma; or 1, whose columns are the two bytes of each lane's own "
          "columns, for scales of groups of inputs");
    visit("code_words", &P::code_words, Range{1, 4}, Doc::kCodeWords);
    visit("codebook", &P::codebook, Range{}, Doc::kCodebook);
  }
};

VQ_HD constexpr bool scales_integers(const LinearInt8Mma&) { return true; }
// True if a lane has the sums of its own columns.
VQ_HD constexpr bool by_lane(const LinearConfig<LinearInt8Mma>& c) { return c.product_rows == 1; }

// Warps that multiply.
VQ_HD constexpr int multiplying_warps(const LinearConfig<LinearInt8Mma>& c) {
  return c.threads / 32 - c.producer_warps;
}
VQ_HD constexpr int outputs_per_block(const LinearConfig<LinearInt8Mma>& c) {
  return multiplying_warps(c) / c.warps_along_columns * c.outputs_per_warp;
}
// True if chunks of x go through a pipeline while others are multiplied.
VQ_HD constexpr bool in_ring(const LinearConfig<LinearInt8Mma>& c) {
  return c.prepack_x == 1 || c.producer_warps > 0;
}

// A group is some runs, about kGroupColumns columns or a warp's part of a chunk. Each row of x has
// a scale per group, which turns sums of integers into numbers.
inline constexpr int kGroupColumns = 512;
VQ_HD constexpr int chunk_runs(const LinearConfig<LinearInt8Mma>& c) {
  return c.chunk_columns / run_columns(c);
}
VQ_HD constexpr int group_runs(const LinearConfig<LinearInt8Mma>& c) {
  const int of_warp = ceil_div(chunk_runs(c), c.warps_along_columns);
  int runs = kGroupColumns / run_columns(c);
  if (runs > of_warp) runs = of_warp;
  while (runs > 1 && chunk_runs(c) % runs != 0) --runs;
  return runs < 1 ? 1 : runs;
}
VQ_HD constexpr int group_columns(const LinearConfig<LinearInt8Mma>& c) {
  return group_runs(c) * run_columns(c);
}
VQ_HD constexpr int chunk_groups(const LinearConfig<LinearInt8Mma>& c) {
  return chunk_runs(c) / group_runs(c);
}

// Bytes of x per step: 32 columns of the block's rows, with a gap if lanes store adjacent steps,
// which avoids bank conflicts.
VQ_HD constexpr int byte_step_bytes(const LinearConfig<LinearInt8Mma>& c) {
  return c.rows_per_block * 64 + (c.prepack_x == 1 ? 0 : step_gap_bytes(c));
}
// A chunk is [group][row] scales, fp32, padded to 16 bytes; then the bytes.
VQ_HD constexpr int chunk_scale_bytes(const LinearConfig<LinearInt8Mma>& c) {
  return ceil_div(chunk_groups(c) * c.rows_per_block * 4, 16) * 16;
}
VQ_HD constexpr i64 byte_chunk_bytes(const LinearConfig<LinearInt8Mma>& c) {
  return chunk_scale_bytes(c) + i64{c.chunk_columns / 32} * byte_step_bytes(c);
}
// Pipeline stages, a chunk each.
VQ_HD constexpr int byte_chunks(const LinearConfig<LinearInt8Mma>& c) {
  constexpr i64 kMost = 3;
  const i64 share = ceil_div(chunks(c), i64{c.splits});
  return in_ring(c) ? static_cast<int>(share < kMost ? share : kMost) : 1;
}

// Octets per lane of a group's row.
VQ_HD constexpr int lane_octets(const LinearConfig<LinearInt8Mma>& c) {
  return ceil_div(group_columns(c), 256);
}

// Sums per lane, of outputs and rows; the integer sums are twice as many, one for each byte of x.
VQ_HD constexpr int lane_sums(const LinearConfig<LinearInt8Mma>& c) {
  const int rows = by_lane(c) ? 2 * c.rows_per_block : c.rows_per_block / 2;
  return c.outputs_per_warp / fragment_outputs(c) * rows;
}
// 32-bit registers per thread: sums, of integers and of all groups; codes of this run and the next,
// and x of a step; addresses and lookups. By lane also scaled sums, sums of x and scales.
VQ_HD constexpr int byte_registers(const LinearConfig<LinearInt8Mma>& c) {
  constexpr int kBeside = 40;
  const int tiles = c.outputs_per_warp / fragment_outputs(c);
  const int codes = tiles * 2 * 2 * run_words(c);
  if (by_lane(c)) return 4 * lane_sums(c) + codes + 6 * c.rows_per_block + 4 * tiles + kBeside + 16;
  return 3 * lane_sums(c) + codes + c.rows_per_block / 2 + kBeside;
}

// Signs of codes that a lane scales itself are masks of an entry's bytes, a copy for each lane that
// looks one up at once.
VQ_HD constexpr bool masks_signs(const LinearConfig<LinearInt8Mma>& c) {
  return by_lane(c) && c.weights.decoder == Decoder::signs;
}
VQ_HD constexpr int mask_bytes(const LinearConfig<LinearInt8Mma>& c) {
  return masks_signs(c) ? 128 << c.weights.vector_size : 0;
}

// Floats that a block's warps exchange in the reduction after the last column.
VQ_HD constexpr i64 handed_floats(const LinearConfig<LinearInt8Mma>& c) {
  if (c.warps_along_columns == 1) return 0;
  return i64{32} * multiplying_warps(c) / 2 * lane_sums(c);
}

// Chunks; after the columns, the reduction's floats. beside_bytes() is masks of signs, then the
// pipeline's barriers.
VQ_HD constexpr i64 x_bytes(const LinearConfig<LinearInt8Mma>& c) {
  const i64 staged = byte_chunks(c) * byte_chunk_bytes(c);
  const i64 handed = handed_floats(c) * 4;
  return staged > handed ? staged : handed;
}
VQ_HD constexpr i64 beside_bytes(const LinearConfig<LinearInt8Mma>& c) {
  return mask_bytes(c) + (in_ring(c) ? i64{kRingBesideBytes} * byte_chunks(c) : 0);
}

// Output of the pre-pass: per block of rows all chunks, in their shared-memory layout. A warp makes
// a row of a group.
VQ_HD constexpr i64 made_row_bytes(const LinearConfig<LinearInt8Mma>& c) {
  return chunks(c) * byte_chunk_bytes(c);
}
VQ_HD constexpr i64 handed_of_slot(const LinearConfig<LinearInt8Mma>& c) {
  return c.prepack_x == 1 ? row_blocks(c) * made_row_bytes(c) : 0;
}
VQ_HD constexpr int chunk_units(const LinearConfig<LinearInt8Mma>& c) {
  return chunk_groups(c) * c.rows_per_block;
}
inline constexpr int kMakingThreads = 128;

VQ_HD constexpr CallShape call_shape(const LinearConfig<LinearInt8Mma>& c) {
  CallShape shape{};
  if (c.prepack_x == 1) {
    shape.add({"linear_chunks_of_x", "x",
               ceil_div(row_blocks(c) * chunks(c) * chunk_units(c), i64{kMakingThreads / 32}), 1,
               row_slots(c), kMakingThreads, 0, false, false});
  }
  return call_behind(c, shape, shared_layout(c).total);
}

}  // namespace vq
