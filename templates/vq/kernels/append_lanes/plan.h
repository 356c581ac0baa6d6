// Plan of appending by lanes: the entries of a codebook are spread over the lanes of warps, in
// fp32, and the lanes' nearest meet by shuffles.
#pragma once

#include <vq/layout/launch.h>

namespace vq {

struct AppendLanes {
  int threads = 128;
  int splits = 1;
  int tokens_per_block = 1;
  int warps_along_entries = 1;
  int sub_vectors_per_warp = 4;

  static constexpr const char* kType = "AppendLanes";
  static constexpr const char* kName = "append_lanes";

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AppendLanes;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("splits", &P::splits, Range{1, 128},
          "blocks that share the sub-vectors of a row, at most: each writes whole words");
    visit("tokens_per_block", &P::tokens_per_block, Range{1, 64},
          "new tokens of a sequence that a block encodes at once");
    visit("warps_along_entries", &P::warps_along_entries, Range{1, 32},
          "warps of a block that share the entries of a codebook, a power of two that divides the "
          "block's warps");
    visit("sub_vectors_per_warp", &P::sub_vectors_per_warp, Range{1, 16},
          "sub-vectors of one codebook that are compared with an entry once it is loaded, at most");
  }
};

// A block encodes a share of the sub-vectors of up to tokens_per_block rows, new tokens of one
// sequence, head and tensor. A share's codes are whole words, so that no word has two writers.
// Grid: (blocks of tokens x (shares of a key + shares of a value), kv_heads, batch).
//
// What a kernel knows of its problem; batch is the launch's.
struct AppendProblem {
  Element element;
  int head_dim;
  int kv_heads;
  int new_tokens;
  int max_window;   // slots of the raw ring of newest tokens
  int max_sinks;    // slots of raw first tokens
  int page_tokens;  // 0: a cache without pages
  FormatConfig keys;
  FormatConfig values;

  static constexpr const char* kType = "AppendProblem";
  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AppendProblem;
    visit("element", &P::element);
    visit("head_dim", &P::head_dim);
    visit("kv_heads", &P::kv_heads);
    visit("new_tokens", &P::new_tokens);
    visit("max_window", &P::max_window);
    visit("max_sinks", &P::max_sinks);
    visit("page_tokens", &P::page_tokens);
    visit("keys", &P::keys);
    visit("values", &P::values);
  }
};

// Problem and plan side by side. Codebooks are read from global memory, which no plan changes.
template <class Plan>
struct AppendConfig : AppendProblem, Plan {};

template <class Plan>
VQ_HD constexpr AppendConfig<Plan> configure(const AppendProblem& problem, const Plan& plan) {
  return {problem, plan};
}

VQ_HD constexpr int sub_vectors(const AppendConfig<AppendLanes>& c, const FormatConfig& f) {
  return c.head_dim / f.vector_size;
}

// Sub-vectors whose codes fill whole words, the least number of them.
VQ_HD constexpr int word_sub_vectors(const FormatConfig& f) {
  int count = 1;
  while (count * f.residuals * f.index_bits % 32 != 0) count *= 2;
  return count;
}

// Sub-vectors of a block, and blocks that have some; the last may have fewer.
VQ_HD constexpr int share_sub_vectors(const AppendConfig<AppendLanes>& c, const FormatConfig& f) {
  const int all = sub_vectors(c, f);
  const int wanted = round_up(ceil_div(all, c.splits), word_sub_vectors(f));
  return wanted < all ? wanted : all;
}
VQ_HD constexpr int shares(const AppendConfig<AppendLanes>& c, const FormatConfig& f) {
  return ceil_div(sub_vectors(c, f), share_sub_vectors(c, f));
}
VQ_HD constexpr int token_blocks(const AppendConfig<AppendLanes>& c) {
  return ceil_div(c.new_tokens, c.tokens_per_block);
}

// Sub-vectors that are compared together: runs of one length tile the channels of each codebook.
VQ_HD constexpr int run_sub_vectors(const AppendConfig<AppendLanes>& c, const FormatConfig& f) {
  const int of_unit = f.unit_elements / f.vector_size;
  int run = c.sub_vectors_per_warp < of_unit ? c.sub_vectors_per_warp : of_unit;
  while (of_unit % run != 0) --run;
  return run;
}

// Byte offsets into the block's shared memory.
struct AppendLanesShared {
  i64 rows;       // [tokens_per_block][head_dim] fp32: transformed, then what stages leave of it
  i64 distances;  // [tokens_per_block][share][warps_along_entries] fp32, of the nearest
  i64 nearest;    // the same, u32: candidates
  i64 codes;      // [tokens_per_block][share][residuals] u32
  i64 scales;     // [tokens_per_block] fp32, where tokens have scales
  i64 total;
};

VQ_HD constexpr AppendLanesShared shared_layout(const AppendConfig<AppendLanes>& c,
                                                const FormatConfig& f) {
  AppendLanesShared at{};
  Carver carve;
  const i64 vectors = i64{c.tokens_per_block} * share_sub_vectors(c, f);
  at.rows = carve(i64{c.tokens_per_block} * c.head_dim * 4);
  at.distances = carve(vectors * c.warps_along_entries * 4);
  at.nearest = carve(vectors * c.warps_along_entries * 4);
  at.codes = carve(vectors * f.residuals * 4);
  at.scales = carve(f.token_scales ? i64{c.tokens_per_block} * 4 : i64{0});
  at.total = carve.next;
  return at;
}

// Of the tensor that takes more.
VQ_HD constexpr i64 block_shared_bytes(const AppendConfig<AppendLanes>& c) {
  const i64 keys = shared_layout(c, c.keys).total;
  const i64 values = shared_layout(c, c.values).total;
  return keys > values ? keys : values;
}

VQ_HD constexpr CallShape call_shape(const AppendConfig<AppendLanes>& c, i64 batch) {
  CallShape shape{};
  const i64 blocks = i64{token_blocks(c)} * (shares(c, c.keys) + shares(c, c.values));
  shape.add({"kv_append_lanes", "", blocks, c.kv_heads, batch, c.threads, block_shared_bytes(c),
             false, true});
  return shape;
}

}  // namespace vq
