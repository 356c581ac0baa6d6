// Compile-time facts of one attention_decode kernel, and how its block carves shared memory.
//
// A block serves `heads_per_block` query heads of one KV head of one sequence, over one split of
// its tokens. Grid: (splits, kv_heads * head_blocks, batch). In dataflow channels one kernel makes
// scores and another sums values, and the blocks of each share the channels of a head besides:
// (splits, kv_heads * head_blocks * shares, batch).
#pragma once

#include <vq/layout/format.h>
#include <vq/layout/splits.h>

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
  Combine combine;
  int heads_per_block;
  int lanes_per_token;
  int stages;
  int code_words;
  int table_bits;            // tables: of an inner product, 32 (fp32) or 16 (f16)
  int key_channel_splits;    // channels: blocks that share the channels of a head's keys,
  int value_channel_splits;  // of its values; 1 in other dataflows
  FormatConfig keys;
  FormatConfig values;
};

VQ_HD constexpr int group(const AttentionDecodeConfig& c) { return c.query_heads / c.kv_heads; }
VQ_HD constexpr int head_blocks(const AttentionDecodeConfig& c) {
  return ceil_div(group(c), c.heads_per_block);
}
// Counters of a call whose last blocks merge: results that blocks share.
VQ_HD constexpr i64 counters(const AttentionDecodeConfig& c, i64 batch) {
  return batch * c.kv_heads * head_blocks(c);
}
VQ_HD constexpr int units_per_head(const FormatConfig& f, int head_dim) {
  return head_dim / f.unit_elements;
}
VQ_HD constexpr int raw_slots(const AttentionDecodeConfig& c) { return c.max_window + c.max_sinks; }
VQ_HD constexpr bool transformed(const AttentionDecodeConfig& c) {
  return c.keys.smooth || c.keys.hadamard;
}

// What a kernel does of the op: channels has one for scores and one for values.
enum class AttentionPart : int { kWhole = 0, kScores = 1, kValues = 2 };

// Channels of a head that a block serves.
VQ_HD constexpr int key_channels(const AttentionDecodeConfig& c) {
  return c.head_dim / c.key_channel_splits;
}
VQ_HD constexpr int value_channels(const AttentionDecodeConfig& c) {
  return c.head_dim / c.value_channel_splits;
}
// Units that so many channels touch: they lie within one, or are whole ones.
VQ_HD constexpr int units_of(const FormatConfig& f, int channels) {
  return channels < f.unit_elements ? 1 : channels / f.unit_elements;
}
// Words of a token's row that hold the codes of a share of `channels`, the most of any share: codes
// of one that is no whole words may begin in the middle of a word.
VQ_HD constexpr int share_words(const FormatConfig& f, int channels, int head_dim) {
  const i64 bits = i64{channels} / f.vector_size * f.residuals * f.index_bits;
  const i64 words = ceil_div(bits, i64{32}) + (channels < head_dim && bits % 32 != 0 ? 1 : 0);
  return static_cast<int>(words);
}

// Tables. Entry e's inner product with sub-vector s, of `table_heads` query heads side by side that
// one lookup brings; more heads are further planes:
//
//   table [plane][stage][entry][table_columns][table_heads] of table_bits, stage scales included
//
// 8 lanes share a token, each with a run of lane_sub_vectors whose codes are side by side; column
// 8 j + l is sub-vector j of lane l's run, so that lanes which look up together have columns side
// by side:
//
//   column      |  0            |  1            | ..  7 |  8                |  9                |
//   .. sub-vector  |  0            |  n            |    7n |  1                |  n + 1 |
VQ_HD constexpr int power_of_two_from(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}
inline constexpr int kTableLanes = 8;
VQ_HD constexpr int lane_sub_vectors(const AttentionDecodeConfig& c) {
  return ceil_div(c.head_dim / c.keys.vector_size, kTableLanes);
}
VQ_HD constexpr int table_columns(const AttentionDecodeConfig& c) {
  return kTableLanes * lane_sub_vectors(c);
}
VQ_HD constexpr int table_heads(const AttentionDecodeConfig& c) {
  const int most = 128 / c.table_bits;  // the widest access
  const int wanted = power_of_two_from(c.heads_per_block);
  return wanted < most ? wanted : most;
}
VQ_HD constexpr int table_planes(const AttentionDecodeConfig& c) {
  return ceil_div(c.heads_per_block, table_heads(c));
}
VQ_HD constexpr i64 table_bytes(const AttentionDecodeConfig& c) {
  return i64{table_planes(c)} * c.keys.residuals * entries(c.keys) * table_columns(c) *
         table_heads(c) * (c.table_bits / 8);
}

// Byte offsets into the block's shared memory; a part that the kernel lacks has no bytes.
struct AttentionDecodeShared {
  CodebookShared keys;
  CodebookShared values;
  i64 query;      // [heads_per_block][head_dim] fp32, transformed, in units of log2
  i64 raw_query;  // the same untransformed; is `query` where nothing is transformed
  i64 table;      // tables: see above
  i64 codes;      // [stages][tile_tokens][key words + value words] u32
  i64 scores;     // [heads_per_block][tile_tokens] fp32; probabilities after the softmax
  i64 running;    // [3][heads_per_block] fp32: maximum, sum, rescale of this tile
  i64 output;     // [heads_per_block][value_channels] fp32
  i64 total;
};

VQ_HD constexpr AttentionDecodeShared shared_layout(const AttentionDecodeConfig& c,
                                                    AttentionPart part) {
  AttentionDecodeShared at{};
  Carver carve;
  const bool scores = part != AttentionPart::kValues;
  const bool values = part != AttentionPart::kScores;
  const i64 query_bytes = scores ? i64{c.heads_per_block} * c.head_dim * 4 : 0;
  const i64 words = (scores ? share_words(c.keys, key_channels(c), c.head_dim) : 0) +
                    (values ? share_words(c.values, value_channels(c), c.head_dim) : 0);
  if (scores) at.keys = carve_codebook(c.keys, units_of(c.keys, key_channels(c)), carve);
  if (values) at.values = carve_codebook(c.values, units_of(c.values, value_channels(c)), carve);
  at.table = carve(c.dataflow == AttentionDataflow::kTables ? table_bytes(c) : 0);
  at.query = carve(query_bytes);
  at.raw_query = transformed(c) && raw_slots(c) > 0 ? carve(query_bytes) : at.query;
  at.codes = carve(i64{c.stages} * c.tile_tokens * words * 4);
  at.scores = carve(values ? i64{c.heads_per_block} * c.tile_tokens * 4 : 0);
  at.running = carve(values ? i64{3} * c.heads_per_block * 4 : 0);
  at.output = carve(values ? i64{c.heads_per_block} * value_channels(c) * 4 : 0);
  at.total = carve.next;
  return at;
}

// Of the kernel; in dataflow channels of the one that takes more.
VQ_HD constexpr AttentionDecodeShared shared_layout(const AttentionDecodeConfig& c) {
  if (c.dataflow != AttentionDataflow::kChannels) return shared_layout(c, AttentionPart::kWhole);
  const AttentionDecodeShared scores = shared_layout(c, AttentionPart::kScores);
  const AttentionDecodeShared values = shared_layout(c, AttentionPart::kValues);
  return scores.total > values.total ? scores : values;
}

}  // namespace vq
