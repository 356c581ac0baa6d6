// Plan of the wgmma GEMM (Hopper): as mma, but a warpgroup multiplies by all rows at once, read
// from shared memory.
#pragma once

#include <vq/layout/warpgroup_steps.h>

namespace vq {

struct LinearWgmma {
  int threads = 256;
  int outputs_per_warp = 16;
  int chunk_columns = 1024;
  int splits = 1;
  Combine combine = Combine::kernel;
  int rows_per_block = 8;
  int code_words = 1;
  int fetch_only_warps = 0;
  int prefetch_steps = 0;
  Placement codebook{};

  static constexpr const char* kType = "LinearWgmma";
  static constexpr const char* kName = "linear_wgmma";
  static constexpr bool kAhead = true;
  static constexpr bool kMayCluster = true;
  static constexpr int kXElements = 8;
  // wgmma has one form: lanes get outputs as in the mma dataflow with 8 rows.
  static constexpr int fragment_rows = 8;
  static constexpr LinearFusion fusion = LinearFusion::permute;
  static constexpr int byte_sums = 0;
  static constexpr int groups_along_columns = 1;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = LinearWgmma;
    visit("threads", &P::threads, Range{32, 1024}, "threads per block, whole warp groups");
    visit("outputs_per_warp", &P::outputs_per_warp, Range{1, 4096},
          "output features that a warp serves, a multiple of 16");
    visit("chunk_columns", &P::chunk_columns, Range{1, 1 << 24}, Doc::kChunkColumns);
    visit("splits", &P::splits, Range{1, 4096}, Doc::kColumnSplits);
    visit("combine", &P::combine, Range{}, Doc::kSumsSplitsOrClusters);
    visit("rows_per_block", &P::rows_per_block, Range{4, 256},
          "rows of x that a block serves, a power of two from 8");
    visit("code_words", &P::code_words, Range{1, 4}, Doc::kCodeWords);
    visit("fetch_only_warps", &P::fetch_only_warps, Range{0, 3},
          "warps of a block that have no outputs, if fewer outputs per block fill the SMs evenly");
    visit("prefetch_steps", &P::prefetch_steps, Range{0, 1},
          "1: lanes look up one step further ahead of its wgmma, which takes registers");
    visit("codebook", &P::codebook, Range{}, Doc::kCodebook);
  }
};

VQ_HD constexpr int outputs_per_block(const LinearConfig<LinearWgmma>& c) {
  return (c.threads / 32 - c.fetch_only_warps) * c.outputs_per_warp;
}

// A chunk is stored while the last products of the one before are still reading theirs, and other
// warps are behind by a barrier.
inline constexpr int kChunkBuffers = 3;

// Bytes from a step to the next: a gap of 16 avoids bank conflicts between threads that store the
// same row of consecutive steps.
VQ_HD constexpr int step_bytes(const LinearConfig<LinearWgmma>& c) {
  return 2 * product_bytes(c) + kCoreRowBytes;
}
// Descriptor of a chunk's core matrices, the first of which is at `address`.
VQ_HD constexpr u64 x_descriptor(const LinearConfig<LinearWgmma>& c, u32 address) {
  return core_descriptor(address, k_octet_bytes(c), kCoreBytes);
}
// Rows of a step that one thread fetches, 4 octets each, while the last chunk is multiplied.
VQ_HD constexpr int fetched_steps(const LinearConfig<LinearWgmma>& c) {
  return ceil_div(c.rows_per_block * chunk_steps(c), c.threads);
}
// Registers with the fetched x of the next chunk.
VQ_HD constexpr int registers_of(const LinearConfig<LinearWgmma>& c) {
  return warpgroup_registers(c) + 16 * fetched_steps(c);
}

// [kChunkBuffers][chunk_steps][kStepOctets][rows_per_block][8] u16, steps step_bytes apart.
VQ_HD constexpr i64 x_bytes(const LinearConfig<LinearWgmma>& c) {
  return i64{kChunkBuffers} * chunk_bytes(c);
}

}  // namespace vq
