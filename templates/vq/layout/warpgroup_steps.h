// The steps of products by warp groups (Hopper) that warpgroups and rowgroups share: outputs, codes
// and columns of a step are those of fragments with pairs, and a warp group of four warps
// multiplies 64 outputs by all rows of the block. The x of a chunk stands as core matrices
// (core_matrices.h), an octet of a step after the other, so that a product's two octets and all
// rows are one piece:
//
//   a step   product 0: k 0..7 | k 8..15 | product 1: k 0..7 | k 8..15     all rows, 16 bytes each
//
// A dot product does not care in which order its columns come: in k octet p word c is columns 2p
// and 2p + 1 of the octet of lane c, so that what lane c looks up is its operand as it comes. From
// a step to the next it is step_bytes(), each dataflow's own.
#pragma once

#include <vq/layout/core_matrices.h>
#include <vq/layout/linear_runs.h>

namespace vq {

inline constexpr int kStepOctets = 4;

template <class Plan>
VQ_HD constexpr int k_octet_bytes(const LinearConfig<Plan>& c) {
  return c.rows_per_block * kCoreRowBytes;
}
template <class Plan>
VQ_HD constexpr int product_bytes(const LinearConfig<Plan>& c) {
  return 2 * k_octet_bytes(c);
}
template <class Plan>
VQ_HD constexpr int chunk_steps(const LinearConfig<Plan>& c) {
  return c.chunk_columns / 32;
}
template <class Plan>
VQ_HD constexpr int chunk_bytes(const LinearConfig<Plan>& c) {
  return chunk_steps(c) * step_bytes(c);
}
// What a sub-vector is looked up as: an entry a stage or, with scales, their sum.
VQ_HD constexpr int looked_up_stages(const FormatConfig& f) {
  return f.stage_scales ? 1 : f.num_codebooks;
}
// 32-bit registers of a thread: sums, the codes of this run and the next, operands of two steps,
// what is looked up ahead; and addresses and what is being looked up.
template <class Plan>
VQ_HD constexpr int warpgroup_registers(const LinearConfig<Plan>& c) {
  constexpr int kBeside = 32;
  const int tiles = c.outputs_per_warp / fragment_outputs(c);
  return tiles * c.rows_per_block / 2 + tiles * 2 * (2 * run_words(c) + 8) +
         c.prefetch_steps * tiles * 8 * looked_up_stages(c.weights) + kBeside;
}

}  // namespace vq
