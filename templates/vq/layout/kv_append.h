// Compile-time facts of one kv_append kernel, and how its block carves shared memory.
//
// A block encodes a share of the sub-vectors of up to tokens_per_block rows, new tokens of one
// sequence, head and tensor. A share's codes are whole words, so that no word has two writers.
// Grid: (blocks of tokens x (shares of a key + shares of a value), kv_heads, batch).
#pragma once

#include <vq/layout/format.h>

namespace vq {

struct KvAppendConfig {
  Element element;
  int head_dim;
  int kv_heads;
  int new_tokens;
  int max_window;  // slots of the raw ring of newest tokens
  int max_sinks;   // slots of raw first tokens
  int threads;
  int splits;
  int tokens_per_block;
  int warps_along_entries;
  int sub_vectors_per_warp;
  FormatConfig keys;
  FormatConfig values;
};

VQ_HD constexpr int sub_vectors(const KvAppendConfig& c, const FormatConfig& f) {
  return c.head_dim / f.vector_size;
}

// Sub-vectors whose codes fill whole words, the least number of them.
VQ_HD constexpr int word_sub_vectors(const FormatConfig& f) {
  int count = 1;
  while (count * f.residuals * f.index_bits % 32 != 0) count *= 2;
  return count;
}

// Sub-vectors of a block, and blocks that have some; the last may have fewer.
VQ_HD constexpr int share_sub_vectors(const KvAppendConfig& c, const FormatConfig& f) {
  const int all = sub_vectors(c, f);
  const int wanted = round_up(ceil_div(all, c.splits), word_sub_vectors(f));
  return wanted < all ? wanted : all;
}
VQ_HD constexpr int shares(const KvAppendConfig& c, const FormatConfig& f) {
  return ceil_div(sub_vectors(c, f), share_sub_vectors(c, f));
}
VQ_HD constexpr int token_blocks(const KvAppendConfig& c) {
  return ceil_div(c.new_tokens, c.tokens_per_block);
}

// Sub-vectors that are compared together: runs of one length tile the channels of each codebook.
VQ_HD constexpr int run_sub_vectors(const KvAppendConfig& c, const FormatConfig& f) {
  const int of_unit = f.unit_elements / f.vector_size;
  int run = c.sub_vectors_per_warp < of_unit ? c.sub_vectors_per_warp : of_unit;
  while (of_unit % run != 0) --run;
  return run;
}

// Byte offsets into the block's shared memory.
struct KvAppendShared {
  i64 rows;       // [tokens_per_block][head_dim] fp32: transformed, then what stages leave of it
  i64 distances;  // [tokens_per_block][share][warps_along_entries] fp32, of the nearest
  i64 nearest;    // the same, u32: candidates
  i64 codes;      // [tokens_per_block][share][residuals] u32
  i64 total;
};

VQ_HD constexpr KvAppendShared shared_layout(const KvAppendConfig& c, const FormatConfig& f) {
  KvAppendShared at{};
  Carver carve;
  const i64 vectors = i64{c.tokens_per_block} * share_sub_vectors(c, f);
  at.rows = carve(i64{c.tokens_per_block} * c.head_dim * 4);
  at.distances = carve(vectors * c.warps_along_entries * 4);
  at.nearest = carve(vectors * c.warps_along_entries * 4);
  at.codes = carve(vectors * f.residuals * 4);
  at.total = carve.next;
  return at;
}

// Of the tensor that takes more.
VQ_HD constexpr i64 block_shared_bytes(const KvAppendConfig& c) {
  const i64 keys = shared_layout(c, c.keys).total;
  const i64 values = shared_layout(c, c.values).total;
  return keys > values ? keys : values;
}

}  // namespace vq
