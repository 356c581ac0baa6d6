// Plan of int8_mma attention: keys and values with int8 entries, all MMAs in integers.
#pragma once

#include <vq/layout/query_words.h>

namespace vq {

struct AttentionInt8Mma {
  int threads = 512;
  int splits = 1;
  Combine combine = Combine::kernel;
  int heads_per_block = 1;
  int pipeline_stages = 4;

  static constexpr const char* kType = "AttentionInt8Mma";
  static constexpr const char* kName = "attention_int8_mma";
  static constexpr int key_channel_splits = 1;
  static constexpr int value_channel_splits = 1;
  // All entries, a copy in each bank of shared memory.
  static constexpr int kEntries = 256;
  static constexpr int kCopies = 32;
  static constexpr Placement key_codebook{0, kEntries, kCopies, 0};
  static constexpr Placement value_codebook{0, kEntries, kCopies, 0};
  static constexpr int kVectorSize = 4;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AttentionInt8Mma;
    visit("threads", &P::threads, Range{32, 512}, Doc::kThreads);
    visit("splits", &P::splits, Range{1, 1024}, Doc::kTokenSplits);
    visit("combine", &P::combine, kNoCluster, Doc::kMergesSplits);
    visit("heads_per_block", &P::heads_per_block, Range{1, 8}, Doc::kHeadsPerBlock);
    visit("pipeline_stages", &P::pipeline_stages, Range{2, 8},
          "rounds of codes that shared memory has room for; in one each warp has 32 tokens");
  }
};

// Tokens of a warp's step, and of a round of all warps.
inline constexpr int kBytesStep = 32;
VQ_HD constexpr int token_tile(const AttentionConfig<AttentionInt8Mma>&) { return kBytesStep; }
VQ_HD constexpr int turn_tokens(const AttentionConfig<AttentionInt8Mma>& c) { return c.threads; }

// Tokens that a warp may sum up. Each is rounded to 2^-16 of its warp's largest probability; this
// limit keeps the error of an output below 1e-3 if scores spread by 2.5 (natural log units). Sums
// of bytes fit 32 bits far beyond.
inline constexpr i64 kBytesMostTokens = 8192;
static_assert(kBytesMostTokens * 255 * 127 + (1 << 29) < (i64{1} << 31), "");

// Most tokens per warp for a sequence of `tokens`, if each split takes whole steps.
VQ_HD constexpr i64 warp_tokens(const AttentionConfig<AttentionInt8Mma>& c, i64 tokens) {
  const i64 turn = turn_tokens(c);
  i64 share = ceil_div(ceil_div(tokens, i64{kBytesStep}), i64{c.splits}) * kBytesStep;
  if (c.batch_invariant) share = fixed_split(c, tokens);
  return ceil_div(share, turn) * kBytesStep;
}

// Raw tokens are shared out by themselves, in tiles, after codes.
VQ_HD constexpr bool raw_apart(const AttentionConfig<AttentionInt8Mma>& c) { return reads_raw(c); }
// Tokens of such a tile: its keys fill the warp's part of a round, and so do its values.
inline constexpr int kRawTile = 8;
static_assert(kRawTile * 2 * AttentionInt8Mma::kVectorSize == 2 * kBytesStep, "");

// Bytes of a row of codes.
VQ_HD constexpr int code_row_bytes(const AttentionConfig<AttentionInt8Mma>& c) {
  return c.head_dim / AttentionInt8Mma::kVectorSize;
}
// Codes of keys and of values of a round.
VQ_HD constexpr i64 round_bytes(const AttentionConfig<AttentionInt8Mma>& c) {
  return i64{2} * c.threads * code_row_bytes(c);
}

// Shared-memory layout of a block: during attention, and while its warps' parts merge, over entries
// and rounds.
struct AttentionInt8MmaShared {
  i64 entries;      // [entry]: kCopies of a key's as a word each, then of a value's
  i64 rounds;       // [pipeline_stages]: rows of codes of keys, then of values
  i64 query;        // [heads_per_block][head_dim] fp32, transformed
  i64 query_words;  // [heads_per_block][2] rows of operand words
  i64 query_peaks;  // [heads_per_block] fp32, their largest magnitudes
  i64 raw_query;    // [heads_per_block][head_dim] fp32, untransformed, where that is another
  i64 raw_words;    // [heads_per_block] rows of operand words of it, where there are raw tokens
  i64 raw_tokens;   // RawTokens of the block (raw_tiles.cuh)
  i64 parts;        // at the end: [warp][quad head][part_row] fp32
  i64 maximum;      // [quad head][warp] fp32
  i64 sum;          // [quad head][warp] fp32
  i64 total;
};

// Floats between the heads of a warp's part, padded so that stores have no bank conflicts.
VQ_HD constexpr int part_row(int head_dim) { return head_dim + 4; }

VQ_HD constexpr AttentionInt8MmaShared bytes_layout(const AttentionConfig<AttentionInt8Mma>& c) {
  AttentionInt8MmaShared at{};
  Carver carve;
  const i64 warps = c.threads / 32;
  at.entries = carve(i64{AttentionInt8Mma::kEntries} * 2 * AttentionInt8Mma::kCopies * 4);
  at.rounds = carve(c.pipeline_stages * round_bytes(c));
  at.query = carve(i64{c.heads_per_block} * c.head_dim * 4);
  at.query_words =
      carve(i64{query_word(quarter_words(c.head_dim) / 2, 2, 2 * c.heads_per_block, 0, 0)} * 4);
  at.query_peaks = carve(i64{c.heads_per_block} * 4);
  at.raw_query =
      transformed(c) && reads_raw(c) ? carve(i64{c.heads_per_block} * c.head_dim * 4) : at.query;
  if (reads_raw(c)) {
    at.raw_words =
        carve(i64{query_word(quarter_words(c.head_dim), 4, c.heads_per_block, 0, 0)} * 4);
    at.raw_tokens = carve(16);
  }
  at.maximum = carve(warps * quad_heads(c) * 4);
  at.sum = carve(warps * quad_heads(c) * 4);
  at.total = carve.next;
  at.parts = at.entries;
  return at;
}

// Codes are copied by pieces of 16 bytes.
VQ_HD constexpr CallShape call_shape(const AttentionConfig<AttentionInt8Mma>& c, i64 batch, i64) {
  CallShape shape = attention_shape(c, batch, bytes_layout(c).total, true);
  shape.code_bytes = most(shape.code_bytes, 16);
  if (reads_raw(c)) shape.element_bytes = 16;
  return shape;
}

}  // namespace vq
