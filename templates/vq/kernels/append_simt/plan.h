// Plan of simt kv_append: lanes of several warps share a codebook's entries, compare them in fp32,
// and reduce to the nearest by shuffles.
#pragma once

#include <vq/layout/append.h>

namespace vq {

struct AppendSimt {
  int threads = 128;
  int splits = 1;
  int tokens_per_block = 1;
  int sequences_per_block = 1;
  int warps_along_entries = 1;
  int sub_vectors_per_warp = 4;
  static constexpr bool norms = false;

  static constexpr const char* kType = "AppendSimt";
  static constexpr const char* kName = "append_simt";

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AppendSimt;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("splits", &P::splits, Range{1, 128},
          "blocks that share the sub-vectors of a row, at most: each writes whole words");
    visit("tokens_per_block", &P::tokens_per_block, Range{1, 64},
          "new tokens of a sequence that a block encodes at once");
    visit("sequences_per_block", &P::sequences_per_block, Range{1, 32}, Doc::kSequencesPerBlock);
    visit("warps_along_entries", &P::warps_along_entries, Range{1, 32},
          "warps of a block that share the entries of a codebook, a power of two that divides the "
          "block's warps");
    visit("sub_vectors_per_warp", &P::sub_vectors_per_warp, Range{1, 16},
          "sub-vectors of one codebook that are compared with an entry once it is loaded, at most");
  }
};

VQ_HD constexpr CallShape call_shape(const AppendConfig<AppendSimt>& c, i64 batch) {
  return append_shape(c, "kv_append_simt", batch);
}

}  // namespace vq
