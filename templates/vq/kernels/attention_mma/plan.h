// Plan of mma attention: decoded entries are tensor-core operands as they come from the lookup.
#pragma once

#include <vq/layout/query_words.h>

namespace vq {

struct AttentionMma {
  int threads = 128;
  int step_tokens = 16;
  int splits = 1;
  Schedule schedule = Schedule::per_sequence;
  Combine combine = Combine::kernel;
  int heads_per_block = 1;
  int code_words = 1;
  int code_stages = 0;
  Placement key_codebook{};
  Placement value_codebook{};

  static constexpr const char* kType = "AttentionMma";
  static constexpr const char* kName = "attention_mma";
  static constexpr int key_channel_splits = 1;
  static constexpr int value_channel_splits = 1;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AttentionMma;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("step_tokens", &P::step_tokens, Range{8, 32},
          "tokens that a warp works on at once: 8, 16 or 32");
    visit("splits", &P::splits, Range{1, 1024}, Doc::kScheduledSplits);
    visit("schedule", &P::schedule, Range{}, Doc::kSchedule);
    visit("combine", &P::combine, kNoCluster, Doc::kMergesSplits);
    visit("heads_per_block", &P::heads_per_block, Range{1, 4096}, Doc::kHeadsPerBlock);
    visit("code_words", &P::code_words, Range{1, 4},
          "32-bit words that one load of codes moves where it can, a power of two; rows of codes "
          "are aligned to as much");
    visit("code_stages", &P::code_stages, Range{0, 4},
          "0: codes of a warp's next step load into registers; 2 to 4: codes of that many steps "
          "load into shared memory, by bulk copies");
    visit("key_codebook", &P::key_codebook, Range{}, Doc::kKeyCodebook);
    visit("value_codebook", &P::value_codebook, Range{}, Doc::kValueCodebook);
  }
};

// Bytes would become elements again at each lookup, which takes longer than the wider lookup. Large
// codebooks stay bytes: they would leave shared memory to few of their entries.
VQ_HD constexpr bool holds_elements(const AttentionConfig<AttentionMma>& c) {
  constexpr int kFew = 256;  // entries
  return entries(c.values) <= kFew && c.values.num_codebooks == 1;
}

// True if key channels have scales per group of tokens, which the query takes for each group.
VQ_HD constexpr bool grouped_keys(const AttentionConfig<AttentionMma>& c) {
  return c.keys.scale_tokens > 0;
}
// Consecutive steps of a warp in one group: the query takes the group's scales once for two.
VQ_HD constexpr int steps_in_turn(const AttentionConfig<AttentionMma>& c) {
  return grouped_keys(c) && 2 * c.step_tokens <= c.keys.scale_tokens ? 2 : 1;
}
// True if probabilities take the scales of the values' tokens. Affine values take them themselves,
// with their zeros.
VQ_HD constexpr bool scaled_probabilities(const FormatConfig& values) {
  return values.token_scales && values.decoder != Decoder::affine;
}

VQ_HD constexpr int token_tile(const AttentionConfig<AttentionMma>& c) {
  return steps_in_turn(c) * c.step_tokens;
}

VQ_HD constexpr bool balanced(const AttentionConfig<AttentionMma>& c) {
  return c.schedule == Schedule::balanced;
}
VQ_HD constexpr int turn_tokens(const AttentionConfig<AttentionMma>& c) {
  return c.threads / 32 * token_tile(c);
}
// Words of a stage of a warp's code pipeline (ops/ring_codes.cuh).
VQ_HD constexpr i64 stage_words(const AttentionConfig<AttentionMma>& c) {
  return token_tile(c) * (row_words(c.keys, c.head_dim) + row_words(c.values, c.value_dim));
}

// True if the value MMA has heads of two quads as columns, and twice as many tokens along k.
VQ_HD constexpr bool pairs_quads(const AttentionConfig<AttentionMma>& c) {
  return (c.query_tokens > 1 || !is_scalar(c.values.decoder)) && quad_heads(c) % 8 == 0 &&
         c.step_tokens % 16 == 0;
}

// Shared-memory layout of a block: during attention, and while its warps' parts merge, over what is
// no longer needed. A block with several pieces keeps its codebooks.
struct AttentionMmaShared {
  CodebookShared keys;
  CodebookShared values;
  i64 query;          // [heads_per_block][head_dim] fp32, transformed
  i64 raw_query;      // as `query`, untransformed; equals `query` without a transform
  i64 query_words;    // [query_stages][heads_per_block][query_parts] rows of operand words
  i64 raw_words;      // [heads_per_block] such rows, where there are raw tokens
  i64 group_query;    // [warp] operand rows of one group's scales: ops/group_query.cuh
  i64 ring;           // [warp][code_stages] rows of codes: ops/ring_codes.cuh
  i64 query_peaks;    // [heads_per_block] fp32, the largest magnitudes where the query is parted
  i64 merge;          // from here on instead, at the end: ops/warp_softmax.cuh
  i64 warp_maximum;   // [warp][quad_heads] fp32, behind both
  i64 ring_barriers;  // [warp][code_stages] of the ring, and a counter: nothing else's at any time
  i64 total;
};

// Floats from a head's row to the next where warps are merged: a quad's begin in other banks.
VQ_HD constexpr int merge_stride(int value_dim) { return value_dim + 4; }

// A query that is not exact in 16 bits is parted in two (ops/query_fragments.cuh), and has the
// scales of its keys' stages, or of the channels of scalar ones.
VQ_HD constexpr int query_parts(const AttentionConfig<AttentionMma>& c) {
  const bool exact =
      !transformed(c) && !c.keys.stage_scales && !c.keys.int8_entries && !is_scalar(c.keys.decoder);
  return exact ? 1 : 2;
}
VQ_HD constexpr int query_stages(const AttentionConfig<AttentionMma>& c) {
  return grouped_keys(c) ? 2 : c.keys.stage_scales ? c.keys.num_codebooks : 1;
}
// Words of a warp's query times one group's scales: all heads and the zeros; and the words of both
// as loaded, except with a code pipeline.
VQ_HD constexpr int group_query_words(const AttentionConfig<AttentionMma>& c) {
  if (!grouped_keys(c)) return 0;
  return query_word(quarter_words(c.head_dim), 4, c.heads_per_block * query_parts(c) + 1, 0, 0) +
         (c.code_stages > 0 ? 0 : c.head_dim);
}

// Lanes of 8 that share a row of values, whole sub-vectors and whole products each: 8 if they can,
// fewer else, as of 96 channels in sub-vectors of 8. The last one's share is then had by those
// beyond it too, for nothing.
VQ_HD constexpr int value_lanes(const AttentionConfig<AttentionMma>& c) {
  if (is_scalar(c.values.decoder)) return 8;
  for (int lanes = 8; lanes > 1; --lanes) {
    const int channels = c.value_dim / lanes;
    if (c.value_dim % lanes == 0 && channels % 4 == 0 && channels % c.values.vector_size == 0) {
      return lanes;
    }
  }
  return 1;
}

// Rows of keys and of values whose codes a lane gets in one access (rows_together).
VQ_HD constexpr int lane_bits(const FormatConfig& f, int lanes) {
  return f.part.channels / lanes / f.vector_size * f.num_codebooks * f.index_bits;
}
VQ_HD constexpr int keys_together(const AttentionConfig<AttentionMma>& c) {
  return rows_together(c.keys.layout, lane_bits(c.keys, 4));
}
VQ_HD constexpr int values_together(const AttentionConfig<AttentionMma>& c) {
  return rows_together(c.values.layout, lane_bits(c.values, value_lanes(c)));
}
// Tiles whose tokens interleave so that a lane's are contiguous: with n tiles lane (g, c) has the
// keys of tokens n g .. n g + n - 1 of 8 n, one per tile, and the values of 2 n c .. 2 n c + 2 n -
// 1, rows 2 c and 2 c + 1 of each tile.
VQ_HD constexpr int joined_tiles(const AttentionConfig<AttentionMma>& c) {
  const int keys = keys_together(c);
  const int values = values_together(c) / 2;
  int tiles = keys > values ? keys : values;
  while (c.step_tokens / 8 % tiles != 0) tiles /= 2;
  return tiles;
}

VQ_HD constexpr AttentionMmaShared fragments_layout(const AttentionConfig<AttentionMma>& c) {
  AttentionMmaShared at{};
  Carver carve;
  const i64 query_bytes = i64{c.heads_per_block} * c.head_dim * 4;
  const i64 row_bytes = i64{query_word(quarter_words(c.head_dim), 4, c.heads_per_block, 0, 0)} * 4;
  at.keys = carve_codebook(c.keys, units_per_head(c.keys, c.head_dim), carve);
  at.values = carve_codebook(c.values, units_per_head(c.values, c.value_dim), carve);
  at.query = carve(query_bytes);
  at.raw_query = transformed(c) && reads_raw(c) ? carve(query_bytes) : at.query;
  at.query_words = carve(query_stages(c) * query_parts(c) * row_bytes);
  at.raw_words = carve(reads_raw(c) ? row_bytes : i64{0});
  at.query_peaks = carve(i64{c.heads_per_block} * 4);
  const int warps = c.threads / 32;
  at.group_query = carve(i64{warps} * group_query_words(c) * 4);
  at.ring = carve(i64{warps} * c.code_stages * stage_words(c) * 4);
  const i64 attending = carve.next;
  carve.next = balanced(c) ? at.query : 0;
  // Per warp and head: a sum, and a row.
  at.merge = carve(i64{warps} * quad_heads(c) * (1 + merge_stride(c.value_dim)) * 4);
  if (carve.next < attending) carve.next = attending;
  at.warp_maximum = carve(i64{warps} * quad_heads(c) * 4);
  at.ring_barriers = carve(c.code_stages > 0 ? i64{warps} * (c.code_stages + 1) * 8 : 0);
  at.total = carve.next;
  return at;
}

// Blocks that share all sequences must run two per SM with 128 registers per thread. Blocks of few
// threads would take more registers for nothing.
VQ_HD constexpr int resident(const AttentionConfig<AttentionMma>& c) {
  const bool enough = c.heads_per_block * most(c.head_dim, c.value_dim) <= 1024;
  return balanced(c) && enough && c.threads <= 256 ? 512 / c.threads : 0;
}

// Codes are read by whole loads, raw rows and queries by accesses of 16 bytes.
VQ_HD constexpr CallShape call_shape(const AttentionConfig<AttentionMma>& c, i64 batch, i64) {
  CallShape shape = attention_shape(c, batch, fragments_layout(c).total, true);
  shape.launches[0].resident = resident(c);
  shape.code_bytes = most(shape.code_bytes, 4 * c.code_words);
  shape.element_bytes = 16;
  return shape;
}

}  // namespace vq
