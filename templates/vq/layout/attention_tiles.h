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
  CodebookShared keys;
  CodebookShared values;
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

template <class Plan>
VQ_HD constexpr AttentionTilesShared shared_layout(const AttentionConfig<Plan>& c,
                                                   AttentionPart part) {
  AttentionTilesShared at{};
  Carver carve;
  const bool scores = part != AttentionPart::kValues;
  const bool values = part != AttentionPart::kScores;
  const i64 query_bytes = scores ? i64{c.heads_per_block} * c.head_dim * 4 : 0;
  const i64 words = (!scores          ? 0
                     : c.parts.none() ? share_words(c.keys, key_channels(c), c.head_dim)
                                      : c.keys.part.row_words) +
                    (values ? share_words(c.values, value_channels(c), c.head_dim) : 0);
  if (scores && c.parts.none()) {  // codebooks of parts are in global memory
    at.keys = carve_codebook(c.keys, units_of(c.keys, key_channels(c)), carve);
  }
  if (values) at.values = carve_codebook(c.values, units_of(c.values, value_channels(c)), carve);
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
