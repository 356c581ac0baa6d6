// The shared memory of a block of a product by fragments, and the shape of its launch.
#pragma once

#include <vq/layout/linear_runs.h>

namespace vq {

VQ_HD constexpr int outputs_per_block(const LinearConfig<LinearFragments>& c) {
  return c.threads / 32 / c.warps_along_columns * c.outputs_per_warp;
}

// With fusions other than permute, x and the entries of shared stand in tiles of rows of the 4
// octets of a step. Where octet `octet` of a row stands in its tile, in octets of 16 bytes: neither
// 2 rows that are stored at once nor the 8 octets that ldmatrix reads at once meet in a bank.
VQ_HD constexpr int tile_place(int row, int octet) { return row * 4 + (octet ^ row / 2 % 4); }

// With fusion shared: a warp's tiles, and a tile: 8 outputs by the 4 octets of a step.
inline constexpr int kExchangeTiles = 2;
inline constexpr int kExchangeOctets = 32;

// Floats that the warps of a block hand to each other when the columns are done.
VQ_HD constexpr i64 handed_floats(const LinearConfig<LinearFragments>& c) {
  if (c.warps_along_columns == 1) return 0;
  const int lane_sums = c.fragment_rows == 4 ? 1 : 4;
  return i64{c.threads} / 2 * (c.outputs_per_warp / fragment_outputs(c)) *
         (c.rows_per_block / c.fragment_rows) * lane_sums;
}

struct LinearFragmentsShared {
  CodebookShared codebook;
  // [run][step][row tile][fragment_rows x 32] u16, steps step_gap_bytes apart (ops/fragment_x.cuh);
  // after the columns, the sums that warps hand over.
  i64 x;
  i64 exchange;  // fusion shared: [warp][kExchangeTiles][kExchangeOctets][8] u16
  i64 total;
};

VQ_HD constexpr LinearFragmentsShared shared_layout(const LinearConfig<LinearFragments>& c) {
  LinearFragmentsShared at{};
  Carver carve;
  at.codebook = carve_codebook(c.weights, units_per_chunk(c), carve);
  const i64 staged =
      i64{c.rows_per_block} * c.chunk_columns * 2 + i64{c.chunk_columns} / 32 * step_gap_bytes(c);
  const i64 handed = handed_floats(c) * 4;
  at.x = carve(staged > handed ? staged : handed);
  if (c.fusion == LinearFusion::shared) {
    at.exchange = carve(i64{c.threads} / 32 * kExchangeTiles * kExchangeOctets * 16);
  }
  at.total = carve.next;
  return at;
}

VQ_HD constexpr CallShape call_shape(const LinearConfig<LinearFragments>& c) {
  return runs_shape(c, "linear_fragments", shared_layout(c).total);
}

}  // namespace vq
