// Plan of int8_mma attention: keys and values with int8 entries, all MMAs in integers.
#pragma once

#include <vq/kernels/attention_int8_mma/lane_row.h>
#include <vq/layout/query_words.h>

namespace vq {

struct AttentionInt8Mma {
  int threads = 512;
  int splits = 1;
  Schedule schedule = Schedule::per_sequence;
  Combine combine = Combine::kernel;
  int heads_per_block = 1;
  int pipeline_stages = 4;
  int fused_basis = 0;

  static constexpr const char* kType = "AttentionInt8Mma";
  static constexpr const char* kName = "attention_int8_mma";
  static constexpr int key_channel_splits = 1;
  static constexpr int value_channel_splits = 1;
  // All entries, a copy in each bank of shared memory.
  static constexpr int kEntries = 256;
  static constexpr int kCopies = 32;
  static constexpr Placement key_codebook{0, kEntries, kCopies, 0};
  static constexpr Placement value_codebook{0, kEntries, kCopies, 0};

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AttentionInt8Mma;
    visit("threads", &P::threads, Range{32, 512}, Doc::kThreads);
    visit("splits", &P::splits, Range{1, 1024}, Doc::kScheduledSplits);
    visit("schedule", &P::schedule, Range{}, Doc::kSchedule);
    visit("combine", &P::combine, kNoCluster, Doc::kMergesSplits);
    visit("heads_per_block", &P::heads_per_block, Range{1, 8}, Doc::kHeadsPerBlock);
    visit("pipeline_stages", &P::pipeline_stages, Range{2, 8},
          "rounds of codes that shared memory has room for; a round has 32 tokens per warp");
    visit("fused_basis", &P::fused_basis, Range{0, 1},
          "1: a block brings its query into the basis of keys with center or klt, and its results "
          "out of the basis of values; 0: separate kernels do");
  }
};

// Tokens of a warp's step, and of a round of all warps.
inline constexpr int kBytesStep = 32;
VQ_HD constexpr int token_tile(const AttentionConfig<AttentionInt8Mma>&) { return kBytesStep; }
VQ_HD constexpr int turn_tokens(const AttentionConfig<AttentionInt8Mma>& c) { return c.threads; }
VQ_HD constexpr bool balanced(const AttentionConfig<AttentionInt8Mma>& c) {
  return c.schedule == Schedule::balanced;
}

// Tokens that a warp may sum up. Each is rounded to 2^-16 of its warp's largest probability; this
// limit keeps the error of an output below 1e-3 if scores spread by 2.5 (natural log units). Sums
// of bytes fit 32 bits far beyond.
inline constexpr i64 kBytesMostTokens = 12288;
static_assert(kBytesMostTokens * 255 * 127 + (1 << 29) < (i64{1} << 31), "");
// Tokens of a block from which its warps begin below the maximum in common (byte_softmax.cuh).
inline constexpr int kBytesManyTokens = 8192;

// Most tokens per warp of a sequence of `batch` with up to `tokens`, if each split takes whole
// steps.
VQ_HD constexpr i64 warp_tokens(const AttentionConfig<AttentionInt8Mma>& c, i64 batch, i64 tokens) {
  const i64 turn = turn_tokens(c);
  if (balanced(c)) {
    const i64 turns = ceil_div(tokens, turn);
    const i64 share = ceil_div(batch * (kStartTurns + turns), i64{c.splits});
    return (share < turns ? share : turns) * kBytesStep;
  }
  i64 share = ceil_div(ceil_div(tokens, i64{kBytesStep}), i64{c.splits}) * kBytesStep;
  if (c.batch_invariant) share = fixed_split(c, tokens);
  return ceil_div(share, turn) * kBytesStep;
}

VQ_HD constexpr bool brings_into_basis(const AttentionConfig<AttentionInt8Mma>& c) {
  return c.fused_basis == 1 && !c.key_basis.none();
}
VQ_HD constexpr bool takes_out_of_basis(const AttentionConfig<AttentionInt8Mma>& c) {
  return c.fused_basis == 1;
}

// Raw tokens are shared out by themselves, in tiles, after codes.
VQ_HD constexpr bool raw_apart(const AttentionConfig<AttentionInt8Mma>& c) { return reads_raw(c); }
// Tokens of such a tile: half of its rows fill the warp's key codes of a round, half its value
// codes.
inline constexpr int kRawTile = 8;

// Bytes of a row of codes in device memory, of keys and of values.
VQ_HD constexpr int key_row_bytes(const AttentionConfig<AttentionInt8Mma>& c) {
  return code_row_bytes(c.keys);
}
VQ_HD constexpr int value_row_bytes(const AttentionConfig<AttentionInt8Mma>& c) {
  return code_row_bytes(c.values);
}
// Bytes of one copy, and the alignment of rows in device memory: the most, up to 16, that divide
// rows of keys and rows of values, which may follow each other.
VQ_HD constexpr int copy_bytes(const AttentionConfig<AttentionInt8Mma>& c) {
  const int both = key_row_bytes(c) | value_row_bytes(c);
  return both % 16 == 0 ? 16 : both % 8 == 0 ? 8 : 4;
}
// Lanes that copy a row together, if copies have 16 bytes and the row has 16, 32 or 64; else 1.
VQ_HD constexpr int copying_lanes(int row_bytes, int copy_bytes) {
  const bool together = row_bytes == 16 || row_bytes == 32 || row_bytes == 64;
  return together && copy_bytes == 16 ? row_bytes / 16 : 1;
}
// Bytes that lanes read of a row in one format, its padding included; 0 of parts.
VQ_HD constexpr int lane_bytes(const AttentionConfig<AttentionInt8Mma>& c, bool values) {
  const bool one = operand_formats(c, values) == 1;
  return one ? query_span(row_dim(c, values)) / operand_format(c, values, 0).vector_size : 0;
}
// Do rows of so many bytes follow each other in shared memory? Then a warp copies those of a step
// as one run of bytes. Rows of a power of two would have bank conflicts.
VQ_HD constexpr bool dense_rows(const AttentionConfig<AttentionInt8Mma>& c, int row_bytes) {
  if ((row_bytes & (row_bytes - 1)) == 0) return false;
  return (row_bytes != key_row_bytes(c) || aligned_in(lane_row(c, false), row_bytes)) &&
         (row_bytes != value_row_bytes(c) || aligned_in(lane_row(c, true), row_bytes));
}
// Bytes of the 4 rows of half a raw tile, of the longer of keys and values, for which a warp's rows
// of a step have room.
VQ_HD constexpr int raw_half_bytes(const AttentionConfig<AttentionInt8Mma>& c) {
  return reads_raw(c) ? kRawTile / 2 * query_span(most(c.head_dim, c.value_dim)) * 2 : 0;
}
// Bytes from a row of so many to the next in shared memory.
VQ_HD constexpr int row_stride(const AttentionConfig<AttentionInt8Mma>& c, int row_bytes) {
  if (dense_rows(c, row_bytes)) return row_bytes;
  int least = reads_raw(c) ? raw_half_bytes(c) / kBytesStep : 16;
  if (row_bytes == key_row_bytes(c)) least = most(least, lane_bytes(c, false));
  if (row_bytes == value_row_bytes(c)) least = most(least, lane_bytes(c, true));
  if (row_bytes == 16 && least <= 16) return 16;
  least = most(least, row_bytes);
  return least <= 32 ? 32 : least <= 64 ? 64 : 128;
}
// Bytes of a warp's rows of a step. What lanes read past a row's end follows the last one too.
VQ_HD constexpr int step_bytes(const AttentionConfig<AttentionInt8Mma>& c, bool values) {
  const int row_bytes = values ? value_row_bytes(c) : key_row_bytes(c);
  const int past = most(lane_bytes(c, values) - row_stride(c, row_bytes), 0);
  const int rows = kBytesStep * row_stride(c, row_bytes) + past;
  return round_up(most(rows, raw_half_bytes(c)), 16);
}
VQ_HD constexpr i64 round_bytes(const AttentionConfig<AttentionInt8Mma>& c) {
  return i64{c.threads / 32} * (step_bytes(c, false) + step_bytes(c, true));
}

// True if the query takes factors of parts or of channels, so that what its rounding leaves may
// count (ops/query_rest.cuh).
VQ_HD constexpr bool rests(const AttentionConfig<AttentionInt8Mma>& c) {
  return key_formats(c) > 1 || scales_channels(c.keys, c.head_dim);
}

// Shared-memory layout of a block: during attention, and while its warps' parts merge, over entries
// and rounds; over rounds alone in a block with several pieces, which keeps its entries.
struct AttentionInt8MmaShared {
  i64 entries;      // wide columns, two by two: [entry][2] of 128 bytes
  i64 pairs;        // pair columns, one by one: [entry] of 128 bytes
  i64 rounds;       // [pipeline_stages]: rows of codes of keys, then of values
  i64 query;        // [heads_per_block][head_dim] fp32, transformed; before, of whole quads
  i64 query_sums;   // [warp][4][head_dim] fp32, where the kernel rotates the query
  i64 query_words;  // [heads_per_block][2] rows of operand words
  i64 query_rests;  // as many, of the rests of the query
  i64 query_peaks;  // [heads_per_block] fp32, their largest magnitudes
  i64 results;      // [3][heads_per_block] fp32, where the block takes results out of the basis
  i64 raw_query;    // [heads_per_block][head_dim] fp32, untransformed, where that is another
  i64 raw_words;    // [heads_per_block] rows of operand words of it, where there are raw tokens
  i64 raw_tokens;   // RawTokens of the block (raw_tiles.cuh)
  i64 token_ends;   // [query token] TokenEnds, where a block has several (byte_softmax.cuh)
  i64 parts;        // at the end: [warp][quad head][part_row] fp32
  i64 maximum;      // [quad head][warp] fp32
  i64 sum;          // [quad head][warp] fp32
  i64 merge;        // a word for the last block
  i64 total;
};

// Room for a RawTokens.
VQ_HD constexpr i64 raw_tokens_bytes(const AttentionProblem& c) { return sees_part(c) ? 36 : 32; }
// Room for the TokenEnds of a block: two words per query token; in a tree five, and one of all.
VQ_HD constexpr i64 token_ends_bytes(const AttentionConfig<AttentionInt8Mma>& c) {
  return i64{block_tokens(c)} * (c.tree_mask ? 20 : 8) + (c.tree_mask ? 4 : 0);
}
// Floats between the heads of a warp's part, padded so that stores have no bank conflicts.
VQ_HD constexpr int part_row(int value_dim) { return query_span(value_dim) + 4; }

VQ_HD constexpr AttentionInt8MmaShared bytes_layout(const AttentionConfig<AttentionInt8Mma>& c) {
  AttentionInt8MmaShared at{};
  Carver carve;
  const i64 warps = c.threads / 32;
  constexpr i64 kColumn = i64{AttentionInt8Mma::kEntries} * AttentionInt8Mma::kCopies * 4;
  at.entries = carve(ceil_div(wide_columns(c), 2) * 2 * kColumn);
  at.pairs = carve(pair_columns(c) * kColumn);
  const i64 part_bytes = warps * quad_heads(c) * i64{part_row(c.value_dim)} * 4;
  const i64 all_rounds = c.pipeline_stages * round_bytes(c);
  at.rounds = carve(balanced(c) && part_bytes > all_rounds ? part_bytes : all_rounds);
  const bool rotates = brings_into_basis(c) && c.key_basis.rotation;
  at.query = carve(i64{rotates ? quad_heads(c) : c.heads_per_block} * c.head_dim * 4);
  if (rotates) {  // over the second round, which is asked for later
    const i64 sum_bytes = warps * 4 * c.head_dim * 4;
    const bool fits = sum_bytes <= (c.pipeline_stages - 1) * round_bytes(c);
    at.query_sums = fits ? at.rounds + round_bytes(c) : carve(sum_bytes);
  }
  const i64 word_bytes =
      i64{query_word(quarter_words(c.head_dim) / 2, 2, 2 * c.heads_per_block, 0, 0)} * 4;
  at.query_words = carve(word_bytes);
  if (rests(c)) at.query_rests = carve(word_bytes);
  at.query_peaks = carve(i64{c.heads_per_block} * 4);
  if (takes_out_of_basis(c)) at.results = carve(i64{3} * c.heads_per_block * 4);
  // The channels of parts are in order.
  const bool changed = c.keys.smooth || c.keys.hadamard;
  at.raw_query =
      changed && reads_raw(c) ? carve(i64{c.heads_per_block} * c.head_dim * 4) : at.query;
  if (reads_raw(c)) {
    at.raw_words =
        carve(i64{query_word(quarter_words(c.head_dim), 4, c.heads_per_block, 0, 0)} * 4);
    at.raw_tokens = carve(raw_tokens_bytes(c));
  }
  if (masks_tokens(c)) at.token_ends = carve(token_ends_bytes(c));
  at.maximum = carve(warps * quad_heads(c) * 4);
  at.sum = carve(warps * quad_heads(c) * 4);
  at.merge = balanced(c) ? carve(4) : 0;
  at.total = carve.next;
  at.parts = balanced(c) ? at.rounds : at.entries;
  return at;
}

// Copies of codes are aligned.
VQ_HD constexpr CallShape call_shape(const AttentionConfig<AttentionInt8Mma>& c, i64 batch, i64) {
  CallShape shape = attention_shape(c, batch, bytes_layout(c).total, true);
  shape.code_bytes = most(shape.code_bytes, copy_bytes(c));
  if (reads_raw(c)) shape.element_bytes = 16;
  return shape;
}

}  // namespace vq
