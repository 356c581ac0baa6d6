// Steps of the wgmma and wgmma_large_m dataflows: outputs, codes and columns are as in mma with
// pairs, and a warpgroup multiplies 64 outputs by all rows of the block. The x of a chunk is core
// matrices (core_matrices.h), octet by octet, so that an MMA's two octets and all rows are
// contiguous:
//
//   a step   product 0: k 0..7 | k 8..15 | product 1: k 0..7 | k 8..15     all rows, 16 bytes each
//
// A dot product allows any column order: word c of k octet p is columns 2p and 2p + 1 of lane c's
// octet, so that lane c's lookups are its operand. Each dataflow has its own step_bytes(), the
// distance between steps.
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
// Lookups per sub-vector: an entry per stage or, with scales, their sum.
VQ_HD constexpr int looked_up_stages(const FormatConfig& f) {
  return f.stage_scales || f.group_inputs > 0 ? 1 : f.num_codebooks;
}
// Words of scales of groups that come with an output's codes of a run, at most.
template <class Plan>
VQ_HD constexpr int run_scale_words(const LinearConfig<Plan>& c) {
  const GroupScales groups = group_scales(c.weights);
  if (groups.inputs == 0) return 0;
  const int columns = run_octets(c) * 8;  // per lane
  const int bits = columns / groups.inputs * groups.group_bits();
  return ceil_div(bits, 32) +
         (groups.bits > 0 ? ceil_div(columns * groups.half_bits(), 32 * kBlockInputs) + 1 : 1);
}
// 32-bit registers per thread: sums, codes of this run and the next, operands of two steps, lookups
// ahead; addresses and lookups.
template <class Plan>
VQ_HD constexpr int warpgroup_registers(const LinearConfig<Plan>& c) {
  constexpr int kBeside = 32;
  const int tiles = c.outputs_per_warp / fragment_outputs(c);
  return tiles * c.rows_per_block / 2 + tiles * 2 * (2 * (run_words(c) + run_scale_words(c)) + 8) +
         c.prefetch_steps * tiles * 8 * looked_up_stages(c.weights) + kBeside;
}

}  // namespace vq
