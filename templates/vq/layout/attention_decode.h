// Compile-time facts of one attention_decode kernel, and how its block carves shared memory.
//
// A block serves `heads_per_block` query heads of one KV head of one sequence, over one split of
// its tokens. Grid: (splits, kv_heads * head_blocks, batch).
#pragma once

#include <vq/layout/format.h>

namespace vq {

enum class AttentionDataflow : int { kLanes = 0, kFragments = 1, kTables = 2, kChannels = 3 };

struct AttentionDecodeConfig {
  Element element;
  AttentionDataflow dataflow;
  int head_dim;
  int query_heads;
  int kv_heads;
  int max_window;  // slots of the raw ring of newest tokens
  int max_sinks;   // slots of raw first tokens
  int threads;
  int tile_tokens;
  int splits;
  int heads_per_block;
  int lanes_per_token;
  int stages;
  int code_words;
  FormatConfig keys;
  FormatConfig values;
};

VQ_HD constexpr int group(const AttentionDecodeConfig& c) { return c.query_heads / c.kv_heads; }
VQ_HD constexpr int head_blocks(const AttentionDecodeConfig& c) {
  return ceil_div(group(c), c.heads_per_block);
}
VQ_HD constexpr int units_per_head(const FormatConfig& f, int head_dim) {
  return head_dim / f.unit_elements;
}
VQ_HD constexpr int raw_slots(const AttentionDecodeConfig& c) { return c.max_window + c.max_sinks; }
VQ_HD constexpr bool transformed(const AttentionDecodeConfig& c) {
  return c.keys.smooth || c.keys.hadamard;
}

// Byte offsets into the block's shared memory; a part that the kernel lacks has no bytes.
struct AttentionDecodeShared {
  CodebookShared keys;
  CodebookShared values;
  i64 query;      // [heads_per_block][head_dim] fp32, transformed, in units of log2
  i64 raw_query;  // the same untransformed; is `query` where nothing is transformed
  i64 codes;      // [stages][tile_tokens][key words + value words] u32
  i64 scores;     // [heads_per_block][tile_tokens] fp32; probabilities after the softmax
  i64 running;    // [3][heads_per_block] fp32: maximum, sum, rescale of this tile
  i64 output;     // [heads_per_block][head_dim] fp32
  i64 total;
};

VQ_HD constexpr AttentionDecodeShared shared_layout(const AttentionDecodeConfig& c) {
  AttentionDecodeShared at{};
  i64 next = 0;
  const auto carve = [&next](i64 bytes) {
    const i64 begin = next;
    next += ceil_div(bytes, i64{16}) * 16;
    return begin;
  };
  const auto codebook = [&](const FormatConfig& f) {
    return carve_codebook(f, units_per_head(f, c.head_dim), carve);
  };
  const auto words = [&c](const FormatConfig& f) {
    return row_words(c.head_dim, f.vector_size, f.residuals, f.index_bits);
  };
  const i64 query_bytes = i64{c.heads_per_block} * c.head_dim * 4;
  at.keys = codebook(c.keys);
  at.values = codebook(c.values);
  at.query = carve(query_bytes);
  at.raw_query = transformed(c) && raw_slots(c) > 0 ? carve(query_bytes) : at.query;
  at.codes = carve(i64{c.stages} * c.tile_tokens * (words(c.keys) + words(c.values)) * 4);
  at.scores = carve(i64{c.heads_per_block} * c.tile_tokens * 4);
  at.running = carve(i64{3} * c.heads_per_block * 4);
  at.output = carve(query_bytes);
  at.total = next;
  return at;
}

}  // namespace vq
