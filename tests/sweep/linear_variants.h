// Variants of plans of GEMM, by number: 0 is as they are.
#pragma once

#include <algorithm>

#include "tests/sweep/plans.h"

namespace vqgen::test {

// Varies a plan of mma, besides its splits and placement.
inline void vary(LinearMma& plan, int variant) {
  switch (variant) {
    case 1:
      plan.warps_along_columns = 1;
      break;
    case 2:
      plan.threads = 128;
      plan.warps_along_columns = 4;
      break;
    case 3:
      plan.outputs_per_warp = 32;
      break;
    case 4:
      plan.code_words = 1;
      break;
    case 5:
      plan.rows_per_block = 16;
      break;
    case 6:
      plan.fragment_rows = 4;
      plan.outputs_per_warp = 8;
      break;
    case 7:
      plan.fragment_rows = 4;
      plan.outputs_per_warp = 24;
      plan.rows_per_block = 12;
      plan.warps_along_columns = 2;
      break;
    default:
      break;
  }
}

// Varies a plan of wgmma.
inline void vary(LinearWgmma& plan, int variant) {
  switch (variant) {
    case 1:
      plan.threads = 128;
      plan.fetch_only_warps = 3;
      plan.prefetch_steps = 1;
      break;
    case 2:
      plan.threads = 256;
      plan.outputs_per_warp = 32;
      plan.fetch_only_warps = 1;
      plan.prefetch_steps = 1;
      break;
    case 3:
      plan.rows_per_block = 8;
      plan.prefetch_steps = 1;
      break;
    case 4:
      plan.code_words = 1;
      break;
    case 5:
      plan.rows_per_block = 64;
      plan.code_words = 1;
      break;
    case 6:
      plan.threads = 256;
      plan.outputs_per_warp = 48;
      plan.code_words = 1;
      break;
    case 7:  // many chunks
      plan.threads = 256;
      plan.code_words = 1;
      plan.prefetch_steps = 1;
      plan.chunk_columns /= 4;
      break;
    default:
      break;
  }
}

// Varies a plan of wgmma_large_m.
inline void vary(LinearWgmmaLargeM& plan, int variant) {
  switch (variant) {
    case 1:
      plan.threads = 128;
      break;
    case 2:
      plan.threads = 256;
      plan.outputs_per_warp = 32;
      break;
    case 3:
      plan.rows_per_block = 8;
      break;
    case 4:
      plan.code_words = 1;
      break;
    case 5:
      plan.rows_per_block = 64;
      plan.code_words = 1;
      break;
    case 6:  // pieces of few steps
      plan.threads = 256;
      plan.rows_per_block = 256;
      break;
    case 7:  // many chunks
      plan.code_words = 1;
      plan.chunk_columns /= 4;
      break;
    default:
      break;
  }
}

// Varies a plan of sliced_codebook: shorter blocks, steps, chunks, and the narrowest slices.
inline void vary(LinearSlicedCodebook& plan, const Linear& op, int variant) {
  plan.threads = variant % 2 == 0 ? 64 : 128;
  plan.outputs_per_warp = variant % 4 == 3 ? 6 : 12;
  if (variant >= 4) plan.code_words = std::max(1, plan.code_words / 2);
  plan.columns_per_block = whole_columns(op, plan);
  if (variant >= 6) plan.columns_per_block = std::max(plan.columns_per_block / 2, 1);
  if (variant % 3 == 1) plan.entry_slices = op.weights.held_bytes() / 2;
}

}  // namespace vqgen::test
