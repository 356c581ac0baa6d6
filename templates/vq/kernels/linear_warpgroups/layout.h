// The shared memory of a block of a product by warp groups, and the shape of its launch.
#pragma once

#include <vq/kernels/linear_warpgroups/plan.h>
#include <vq/layout/core_matrices.h>
#include <vq/layout/linear_runs.h>

namespace vq {

VQ_HD constexpr int outputs_per_block(const LinearConfig<LinearWarpgroups>& c) {
  return (c.threads / 32 - c.idle_warps) * c.outputs_per_warp;
}

// Outputs, codes and steps are those of fragments with pairs; a warp group of four
// warps multiplies 64 outputs by all rows of the block. The x of a chunk stands as core matrices
// (core_matrices.h), an octet of a step after the other, so that a product's two octets and all
// rows are one piece:
//
//   a step   product 0: k 0..7 | k 8..15 | product 1: k 0..7 | k 8..15     all rows, 16 bytes each
//
// A dot product does not care in which order its columns come: in k octet p word c is columns 2p
// and 2p + 1 of the octet of lane c, so that what lane c looks up is its operand as it comes.
inline constexpr int kGroupWarps = 4;
inline constexpr int kStepOctets = 4;
// A chunk is stored while the last products of the one before are still reading theirs, and other
// warps are behind by a barrier.
inline constexpr int kChunkBuffers = 3;

VQ_HD constexpr int k_octet_bytes(const LinearConfig<LinearWarpgroups>& c) {
  return c.rows_per_block * kCoreRowBytes;
}
VQ_HD constexpr int product_bytes(const LinearConfig<LinearWarpgroups>& c) {
  return 2 * k_octet_bytes(c);
}
// From a step to the next: 16 bytes more than it has, so that threads which store the same row of
// steps that follow each other meet in no bank.
VQ_HD constexpr int step_bytes(const LinearConfig<LinearWarpgroups>& c) {
  return 2 * product_bytes(c) + kCoreRowBytes;
}
VQ_HD constexpr int chunk_steps(const LinearConfig<LinearWarpgroups>& c) {
  return c.chunk_columns / 32;
}
VQ_HD constexpr int chunk_bytes(const LinearConfig<LinearWarpgroups>& c) {
  return chunk_steps(c) * step_bytes(c);
}
// The core matrices of a chunk whose first stands at `address`.
VQ_HD constexpr u64 x_descriptor(const LinearConfig<LinearWarpgroups>& c, u32 address) {
  return core_descriptor(address, k_octet_bytes(c), kCoreBytes);
}
// Rows of a step that one thread fetches, 4 octets each, while the last chunk is multiplied.
VQ_HD constexpr int fetched_steps(const LinearConfig<LinearWarpgroups>& c) {
  return ceil_div(c.rows_per_block * chunk_steps(c), c.threads);
}
// What a sub-vector is looked up as: an entry a stage or, with scales, their sum.
VQ_HD constexpr int looked_up_stages(const FormatConfig& f) {
  return f.stage_scales ? 1 : f.residuals;
}
// 32-bit registers of a thread: sums, the x of the next chunk, the codes of this run and the next,
// operands of two steps, what is looked up ahead; and addresses and what is being looked up.
VQ_HD constexpr int warpgroup_registers(const LinearConfig<LinearWarpgroups>& c) {
  constexpr int kBeside = 32;
  const int tiles = c.outputs_per_warp / fragment_outputs(c);
  return tiles * c.rows_per_block / 2 + 16 * fetched_steps(c) + tiles * 2 * (2 * run_words(c) + 8) +
         c.steps_ahead * tiles * 8 * looked_up_stages(c.weights) + kBeside;
}

struct LinearWarpgroupsShared {
  CodebookShared codebook;
  // [kChunkBuffers][chunk_steps][kStepOctets][rows_per_block][8] u16, steps step_bytes apart
  i64 x;
  i64 total;
};

VQ_HD constexpr LinearWarpgroupsShared shared_layout(const LinearConfig<LinearWarpgroups>& c) {
  LinearWarpgroupsShared at{};
  Carver carve;
  at.codebook = carve_codebook(c.weights, units_per_chunk(c), carve);
  at.x = carve(i64{kChunkBuffers} * chunk_bytes(c));
  at.total = carve.next;
  return at;
}

VQ_HD constexpr CallShape call_shape(const LinearConfig<LinearWarpgroups>& c) {
  return runs_shape(c, "linear_warpgroups", shared_layout(c).total);
}

}  // namespace vq
