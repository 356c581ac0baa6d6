// Shared-memory layout of attention blocks that stage tiles of codes (simt, lut, channels).
#pragma once

#include <vq/layout/attention.h>

namespace vq {

// The part of the op that a kernel does: channels has one kernel for scores and one for values.
enum class AttentionPart : int { kWhole = 0, kScores = 1, kValues = 2 };

// Bytes of score tables, in lut attention only.
template <class Plan>
VQ_HD constexpr i64 table_bytes(const AttentionConfig<Plan>&) {
  return 0;
}

// Byte offsets into the block's shared memory; a part that the kernel lacks has no bytes.
struct AttentionTilesShared {
  CodebookShared keys[kMostRowParts];  // of each format
  CodebookShared values[kMostRowParts];
  i64 query;      // [heads_per_block][head_dim] fp32, transformed, in units of log2; of keys in
                  // parts part after part
  i64 raw_query;  // as `query`, untransformed; equals `query` without a transform
  i64 table;      // tables: see above
  i64 codes;      // [tiles_in_flight][tile_tokens][key words + value words] u32
  i64 scores;     // [heads_per_block][tile_tokens] fp32; probabilities after the softmax
  i64 running;    // [3][heads_per_block] fp32: maximum, sum, rescale of this tile
  i64 output;     // [heads_per_block][value_channels] fp32
  i64 total;
};

// Words of a token that a block stages, `channels` of it where they are not in parts.
VQ_HD constexpr int staged_words(const FormatConfig& f, int channels, int head_dim) {
  return f.part.in_parts ? f.part.row_words : share_words(f, channels, head_dim);
}

template <class Plan>
VQ_HD constexpr AttentionTilesShared shared_layout(const AttentionConfig<Plan>& c,
                                                   AttentionPart part) {
  AttentionTilesShared at{};
  Carver carve;
  const bool scores = part != AttentionPart::kValues;
  const bool values = part != AttentionPart::kScores;
  const i64 query_bytes = scores ? i64{c.heads_per_block} * c.head_dim * 4 : 0;
  i64 words = 0;
  if (scores) words += staged_words(c.keys, key_channels(c), c.head_dim);
  if (values) words += staged_words(c.values, value_channels(c), c.value_dim);
  for (int i = 0; scores && i < key_formats(c); ++i) {
    const FormatConfig f = key_format(c, i);
    at.keys[i] = carve_codebook(f, block_units(f, key_channels(c)), carve);
  }
  for (int i = 0; values && i < value_formats(c); ++i) {
    const FormatConfig f = value_format(c, i);
    at.values[i] = carve_codebook(f, block_units(f, value_channels(c)), carve);
  }
  at.table = carve(table_bytes(c));
  at.query = carve(query_bytes);
  at.raw_query = transformed(c) && reads_raw(c) ? carve(query_bytes) : at.query;
  at.codes = carve(i64{c.tiles_in_flight} * c.tile_tokens * words * 4);
  at.scores = carve(values ? i64{c.heads_per_block} * c.tile_tokens * 4 : 0);
  at.running = carve(values ? i64{3} * c.heads_per_block * 4 : 0);
  at.output = carve(values ? i64{c.heads_per_block} * value_channels(c) * 4 : 0);
  at.total = carve.next;
  return at;
}

// Shape of a dataflow with a single kernel for the op.
template <class Plan>
VQ_HD constexpr CallShape call_shape(const AttentionConfig<Plan>& c, i64 batch, i64) {
  return attention_shape(c, batch, shared_layout(c, AttentionPart::kWhole).total, false);
}

}  // namespace vq
