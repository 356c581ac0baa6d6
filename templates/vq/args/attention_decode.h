// The argument struct of attention_decode, shared by host and device. Device pointers; nothing is
// owned. Rows of one head follow each other without a gap.
#pragma once

#include <vq/args/quantized.h>

namespace vq {

struct AttentionDecodeArgs {
  static constexpr const char* kType = "AttentionDecodeArgs";
  // [batch][query_heads][head_dim], raw (no transform applied); with query_tokens above 1 a row a
  // query token, as query_start says.
  const u16* query;
  u16* out;                 // as `query`, rows of value_dim channels
  float* lse;               // [batch][query_heads], natural log; -inf where no token is seen
  QuantizedArgs keys;       // rows [batch][kv_head][token]
  QuantizedArgs values;     // rows [batch][kv_head][token]
  const float* key_smooth;  // [kv_heads][head_dim]; null where the keys are not smoothed
  // Full-precision tokens: [batch][kv_head][sinks + window slots][channel]. Token t < sinks is in
  // slot t, a recent token t in slot max_sinks + t % max_recent_tokens, so that an append writes
  // one slot. The mma dataflow needs 16-byte alignment, and codes aligned to the plan's code_words.
  const u16* raw_keys;
  const u16* raw_values;
  i64 raw_batch_stride;  // elements
  i64 raw_head_stride;   // elements
  const i32* lengths;    // [batch] tokens of a sequence's cache; 0 gives zeros and lse -inf
  // [batch] newest tokens in full precision, <= max_recent_tokens - (flush_block - 1); the rest of
  // their batches is read in full precision too. Null without a window.
  const i32* recent_counts;
  const i32* sinks;  // [batch] first tokens stored raw, <= max_sinks; null without sinks
  // [query_tokens][query_heads][partial_slots()][value_dim + 2], fp32; null where splits == 1
  float* partials;
  u32* counters;  // [batch][kv_heads][head blocks], zeros; for plans whose last block merges
  // Dataflow channels: [batch][query_tokens][query_heads][key_channel_splits][capacity] fp32.
  // Dataflow bins: what its kernels hand on (kernels/attention_histogram/plan.h). Else null.
  float* scores;
  i64 capacity;         // tokens that a sequence has at most
  float softmax_scale;  // factor of q.k, usually 1 / sqrt(head_dim)
  // Where scores are bounded: minus twice the bound, in units of log2 as scores are, and the factor
  // of a score for exp2() to give exp(2 score / bound).
  float softcap_span;
  float softcap_rate;
  const float* sink_logits;  // [query_heads], natural logarithms; null without
  i32 batch;                 // sequences
  // [batch + 1] if query_tokens > 1, else null: rows query_start[b] .. query_start[b + 1] - 1 of
  // query, out and lse are sequence b's newest tokens in order; those past query_tokens are
  // ignored. Query token j of n sees the tokens up to its own; with shared_prefix all of them.
  const i32* query_start;
  // Raw keys and values of the query tokens, [row][kv_heads][channel], in no slot: token
  // lengths[b] + j is row query_start[b] + j. Null: `lengths` counts these n tokens, the cache has
  // them, and windows[b] + n - 1 <= max_recent_tokens - (flush_block - 1). mma: 16-byte aligned.
  const u16* new_keys;
  const u16* new_values;
  // Where keys or values are in a basis, the first kernel of a call brings the given rows into it,
  // and all others read them: query, new_keys and new_values above point into the workspace, and
  // given_* to the caller's. With takes_out_of_basis() there is no such kernel, and query is given.
  //
  // The basis of keys and values (layout/basis.h), null where the format has none: [kv_heads]
  // [head_dim], and [kv_heads][head_dim][head_dim], z_j = sum over i of x_i rotation[i][j].
  const float* key_mean;
  const float* key_rotation;
  const float* value_mean;
  const float* value_rotation;
  const u16* given_query;
  const u16* given_keys;
  const u16* given_values;
  // Of raw rows in pages (raw_page_tokens), else null: token t is row t % raw_page_tokens of page
  // raw_table[sequence][t / raw_page_tokens], and raw_batch_stride is between pages. Entries of
  // tokens that are not read raw are not read.
  const i32* raw_table;
  i64 raw_table_columns;
  i64 raw_token_stride;  // elements
  // With a tree of drafts, else null: [row][2], rows as of `query`, the low word first. Bit j of a
  // row says that its token, number i of the sequence, sees token j of those in new_keys. Bit i
  // counts as set and those behind it as clear, whatever they are.
  const u32* tree_mask;
  // Of raw_values where their rows have another size than those of raw_keys; else not read, and
  // raw_values has the strides of raw_keys.
  i64 raw_value_batch_stride;  // elements
  i64 raw_value_head_stride;   // elements
  i64 raw_value_token_stride;  // elements
};

}  // namespace vq
