// Compile-time facts of one attention_decode kernel, and what its dataflows share of them.
//
// A block serves `heads_per_block` query heads of one KV head and one query token of one sequence,
// over one split of its tokens. Grid: (splits, kv_heads * head_blocks, batch); where blocks share
// all sequences (ops/attention_pieces.cuh), (splits, kv_heads * head_blocks). In dataflow channels
// one kernel makes scores and another sums values, and the blocks of each share the channels of a
// head besides: (splits, kv_heads * head_blocks * shares, batch).
#pragma once

#include <vq/layout/basis.h>
#include <vq/layout/launch.h>
#include <vq/layout/parts.h>

namespace vq {

// What a kernel knows of its problem; the launch sets batch and tokens.
struct AttentionProblem {
  Element element;
  int head_dim;   // channels of keys and queries
  int value_dim;  // of values and outputs
  int query_heads;
  int kv_heads;
  int max_recent_tokens;  // slots of the raw ring of newest tokens
  int flush_block;        // tokens that leave the window together
  int max_sinks;          // slots of raw first tokens
  int page_tokens;        // 0: a cache without pages
  int raw_page_tokens;    // 0: raw tokens in slots
  int query_tokens;       // most per sequence
  bool batch_invariant;   // results do not depend on the batch, bit for bit
  int sliding_window;     // newest tokens that a query token sees; 0: all
  int attention_chunk;    // or those of its chunk of so many; 0: all
  bool softcaps;          // scores are bounded (logit_softcap)
  bool sink_logits;       // heads have a logit that adds to the denominator alone
  bool tree_mask;         // query tokens are drafts, of which each sees some before it
  bool shared_prefix;     // all query tokens of a sequence see all of its tokens
  FormatConfig keys;      // in parts: the first
  FormatConfig values;    // in parts: the first
  Parts key_parts;
  Parts value_parts;
  Basis key_basis;
  Basis value_basis;

  static constexpr const char* kType = "AttentionProblem";
  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AttentionProblem;
    visit("element", &P::element);
    visit("head_dim", &P::head_dim);
    visit("value_dim", &P::value_dim);
    visit("query_heads", &P::query_heads);
    visit("kv_heads", &P::kv_heads);
    visit("max_recent_tokens", &P::max_recent_tokens);
    visit("flush_block", &P::flush_block);
    visit("max_sinks", &P::max_sinks);
    visit("page_tokens", &P::page_tokens);
    visit("raw_page_tokens", &P::raw_page_tokens);
    visit("query_tokens", &P::query_tokens);
    visit("batch_invariant", &P::batch_invariant);
    visit("sliding_window", &P::sliding_window);
    visit("attention_chunk", &P::attention_chunk);
    visit("softcaps", &P::softcaps);
    visit("sink_logits", &P::sink_logits);
    visit("tree_mask", &P::tree_mask);
    visit("shared_prefix", &P::shared_prefix);
    visit("keys", &P::keys);
    visit("values", &P::values);
    visit("key_parts", &P::key_parts);
    visit("value_parts", &P::value_parts);
    visit("key_basis", &P::key_basis);
    visit("value_basis", &P::value_basis);
  }
};

// Problem and plan side by side.
template <class Plan>
struct AttentionConfig : AttentionProblem, Plan {};

// True if int8 entries of values are held as the elements that they are stored as. Only dataflow
// mma has that.
template <class Plan>
VQ_HD constexpr bool holds_elements(const AttentionConfig<Plan>&) {
  return false;
}

template <class Plan>
VQ_HD constexpr AttentionConfig<Plan> configure(const AttentionProblem& problem, const Plan& plan) {
  AttentionConfig<Plan> c{problem, plan};
  if (holds_elements(c)) c.values.int8_entries = false;
  place_parts(c);
  c.keys.placement = c.key_codebook;
  c.values.placement = c.value_codebook;
  return c;
}

template <class Plan>
VQ_HD constexpr int group(const AttentionConfig<Plan>& c) {
  return c.query_heads / c.kv_heads;
}
// Query tokens per block: one, or in attention by mma and int8_mma several, each with all heads of
// the KV head.
template <class Plan>
VQ_HD constexpr int block_tokens(const AttentionConfig<Plan>& c) {
  return c.heads_per_block > group(c) ? c.heads_per_block / group(c) : 1;
}
// Blocks that share a query token's heads; blocks of all query tokens of a KV head.
template <class Plan>
VQ_HD constexpr int token_blocks(const AttentionConfig<Plan>& c) {
  return ceil_div(group(c), c.heads_per_block);
}
template <class Plan>
VQ_HD constexpr int head_blocks(const AttentionConfig<Plan>& c) {
  return ceil_div(c.query_tokens, block_tokens(c)) * token_blocks(c);
}
// Query tokens that a call has at most, all sequences together.
template <class Plan>
VQ_HD constexpr i64 query_rows(const AttentionConfig<Plan>& c, i64 batch) {
  return batch * c.query_tokens;
}
// Tokens of which every split takes whole tiles.
template <class Plan>
VQ_HD constexpr int token_tile(const AttentionConfig<Plan>& c) {
  return c.tile_tokens;
}
// True if blocks share all sequences of a call, by length. Only dataflows mma and int8_mma have
// that.
template <class Plan>
VQ_HD constexpr bool balanced(const AttentionConfig<Plan>&) {
  return false;
}
// Turns that a block takes as long for as it takes to begin a sequence: about two of 256 tokens.
inline constexpr int kStartTurns = 2;
// Partials of a head of a query token of one sequence; and of all sequences together.
template <class Plan>
VQ_HD constexpr int partial_count(const AttentionConfig<Plan>& c) {
  return c.splits;
}
// True if results are merged from partials, however few.
template <class Plan>
VQ_HD constexpr bool has_partials(const AttentionConfig<Plan>& c) {
  return partial_count(c) > 1;
}
template <class Plan, class Count>
VQ_HD constexpr Count partial_slots(const AttentionConfig<Plan>& c, Count batch) {
  return balanced(c) ? c.splits + batch - 1 : partial_count(c) * batch;
}
// Tokens that a block takes in one turn of all its warps.
template <class Plan>
VQ_HD constexpr int turn_tokens(const AttentionConfig<Plan>& c) {
  return token_tile(c);
}
// With batch-invariant results: tokens per split for any sequence, so that a token's split depends
// on its number alone; the last split takes the rest. `capacity` is the call's.
template <class Plan>
VQ_HD constexpr i64 fixed_split(const AttentionConfig<Plan>& c, i64 capacity) {
  const i64 turns = ceil_div(capacity, i64{turn_tokens(c)});
  return ceil_div(turns, i64{c.splits}) * turn_tokens(c);
}
// Counters of a call whose last blocks merge: results that blocks share.
template <class Plan>
VQ_HD constexpr i64 counters(const AttentionConfig<Plan>& c, i64 batch) {
  return batch * c.kv_heads * head_blocks(c);
}
VQ_HD constexpr int units_per_head(const FormatConfig& f, int head_dim) {
  return head_dim / f.unit_elements;
}
// True if query tokens do not see all tokens before them.
VQ_HD constexpr bool sees_part(const AttentionProblem& c) {
  return c.sliding_window > 0 || c.attention_chunk > 0;
}
// True if query tokens are a sequence's newest, and may come with their own keys and values.
VQ_HD constexpr bool has_new_tokens(const AttentionProblem& c) {
  return c.query_tokens > 1 && !c.shared_prefix;
}
// True if query tokens of a block may see different tokens of what the block reads.
template <class Plan>
VQ_HD constexpr bool masks_tokens(const AttentionConfig<Plan>& c) {
  return (block_tokens(c) > 1 && !c.shared_prefix) || c.tree_mask;
}
// True if the query of such keys takes channel factors.
VQ_HD constexpr bool scales_channels(const FormatConfig& keys, int head_dim) {
  const bool by_unit = keys.stage_scales || is_scalar(keys.decoder);
  return (by_unit && units_per_head(keys, head_dim) > 1) || (keys.smooth && !keys.hadamard);
}
template <class Plan>
VQ_HD constexpr int raw_slots(const AttentionConfig<Plan>& c) {
  return c.max_recent_tokens + c.max_sinks;
}
// True if full-precision tokens may be read: from the cache's slots, or passed with several query
// tokens.
template <class Plan>
VQ_HD constexpr bool reads_raw(const AttentionConfig<Plan>& c) {
  return raw_slots(c) > 0 || has_new_tokens(c);
}
// True if splits share the coded tokens, and full-precision ones are shared out separately. Only
// the int8_mma dataflow has that.
template <class Plan>
VQ_HD constexpr bool raw_apart(const AttentionConfig<Plan>&) {
  return false;
}
// True if quantized keys need a transformed query, other than that of raw keys.
template <class Plan>
VQ_HD constexpr bool transformed(const AttentionConfig<Plan>& c) {
  return c.keys.smooth || c.keys.hadamard || !c.key_parts.none();
}

// Channels of a head that a block serves.
template <class Plan>
VQ_HD constexpr int key_channels(const AttentionConfig<Plan>& c) {
  return c.head_dim / c.key_channel_splits;
}
template <class Plan>
VQ_HD constexpr int value_channels(const AttentionConfig<Plan>& c) {
  return c.value_dim / c.value_channel_splits;
}
// Units that so many channels touch: they lie within one, or are whole ones.
VQ_HD constexpr int units_of(const FormatConfig& f, int channels) {
  return channels < f.unit_elements ? 1 : channels / f.unit_elements;
}
// Units that a block has of a format of which it serves `channels`, or a whole part.
VQ_HD constexpr int block_units(const FormatConfig& f, int channels) {
  return units_of(f, f.part.in_parts ? f.part.channels : channels);
}
// Words of a token's row that hold the codes of a share of `channels`, the most of any share: codes
// of one that is no whole words may begin in the middle of a word. With scales of a group of tokens
// all of them besides, for each of its tokens.
VQ_HD constexpr int share_words(const FormatConfig& f, int channels, int head_dim) {
  const i64 bits = i64{channels} / f.vector_size * f.num_codebooks * f.index_bits;
  const i64 words = ceil_div(bits, i64{32}) + (channels < head_dim && bits % 32 != 0 ? 1 : 0) +
                    (f.scale_tokens > 0 ? i64{channels} : scale_words(f, channels));
  return static_cast<int>(words);
}

// Partials that a thread loads at once and sums before it adds them to others, so that the order of
// sums does not depend on who merges. Registers bound it.
template <class Plan>
VQ_HD constexpr int merged_together(const AttentionConfig<Plan>& c) {
  return balanced(c) ? 12 : partial_count(c) < 16 ? partial_count(c) : 16;
}
// Teams of the merge kernel, a thread per channel in each: one for each group of partials, as far
// as a block has threads.
template <class Plan>
VQ_HD constexpr int merging_teams(const AttentionConfig<Plan>& c) {
  const int groups = ceil_div(partial_count(c), merged_together(c));
  const int most = 1024 / c.value_dim;
  return balanced(c) ? 1 : groups < most ? groups : most;
}

// True if the main kernel brings the query into the keys' basis, or takes results out of the
// values': a launch less each. Only dataflow int8_mma has that.
template <class Plan>
VQ_HD constexpr bool brings_into_basis(const AttentionConfig<Plan>&) {
  return false;
}
template <class Plan>
VQ_HD constexpr bool takes_out_of_basis(const AttentionConfig<Plan>&) {
  return false;
}
// True if a kernel of its own takes results out of the basis, or changes log-sum-exps by what the
// keys' mean adds. That kernel adds the sink logits, too.
template <class Plan>
VQ_HD constexpr bool ends_with_basis(const AttentionConfig<Plan>& c) {
  return (c.key_basis.mean || !c.value_basis.none()) && !takes_out_of_basis(c);
}
// True if the kernel that takes results out of the values' basis merges the splits, too: a launch
// less. It has one thread per channel, so that many splits are merged by a kernel of their own.
template <class Plan>
VQ_HD constexpr bool merges_out_of_basis(const AttentionConfig<Plan>& c) {
  constexpr int kMostGroups = 2;
  const int groups = ceil_div(partial_count(c), merged_together(c));
  return has_partials(c) && c.combine == Combine::kernel && !c.value_basis.none() &&
         !takes_out_of_basis(c) && (balanced(c) || groups <= kMostGroups);
}

// Counters, what a kernel of a call hands to the next, and the partials; alignment of codes.
template <class Plan>
VQ_HD constexpr void add_attention_workspace(const AttentionConfig<Plan>& c, i64 batch,
                                             i64 handed_bytes, CallShape& shape) {
  shape.splits = c.splits;
  shape.counters = counters(c, batch);
  shape.handed_bytes = handed_bytes;
  shape.code_bytes = code_alignment(c.keys, c.values);
  if (!has_partials(c) && handed_bytes == 0) return;
  shape.workspace_bytes = kCounterBytes + handed_bytes;
  if (!has_partials(c)) return;
  shape.workspace_bytes +=
      i64{c.query_tokens} * c.query_heads * partial_slots(c, batch) * (c.value_dim + 2) * 4;
  if (c.combine == Combine::last_block || merges_out_of_basis(c)) return;
  const int teams = merging_teams(c);
  const i64 groups = teams > 1 ? ceil_div(partial_count(c), merged_together(c)) : 0;
  const int threads = balanced(c) ? round_up(c.value_dim, 32) : c.value_dim * teams;
  // Requests 64 registers per thread, or 80 in teams of up to 768: left alone, ptxas takes 32 and
  // loads few partials at a time.
  const int resident = (teams > 1 && threads <= 768 ? 768 : 1024) / threads;
  shape.add({"attention_combine", "combine", c.query_heads, batch, c.query_tokens, threads,
             groups * (c.value_dim + 2) * 4, true, false, resident});
}

// What a call hands on of rows in the basis.
VQ_HD constexpr BasisRows basis_rows(const AttentionProblem& c, i64 batch) {
  BasisRows at{};
  Carver carve;
  const i64 rows = batch * c.query_tokens;
  const i64 fresh = has_new_tokens(c) ? rows * c.kv_heads * 2 : 0;
  at.query = carve(c.key_basis.none() ? 0 : rows * c.query_heads * c.head_dim * 2);
  at.keys = carve(c.key_basis.none() ? 0 : fresh * c.head_dim);
  at.values = carve(c.value_basis.none() ? 0 : fresh * c.value_dim);
  at.total = carve.next;
  return at;
}
// Kinds of rows that a kernel brings into the basis: queries, new keys, new values.
VQ_HD constexpr int basis_kinds(const AttentionProblem& c, BasisOf of) {
  const int query = changes_keys(c, of) ? 1 : 0;
  return query + (has_new_tokens(c) ? basis_operands(c, of) : 0);
}

// Adds the kernels that change the basis.
template <class Plan>
VQ_HD constexpr void add_basis(CallShape& shape, const AttentionConfig<Plan>& c, i64 batch) {
  if (basis_operands(c, BasisOf::kAll) == 0) return;
  const i64 sinks = c.sink_logits ? kBasisTile * 4 : 0;
  for_each_basis(c, [&](BasisOf of) {
    const int kinds = basis_kinds(c, of);
    if (kinds == 0 || brings_into_basis(c)) return;
    const bool values = of == BasisOf::kValues;
    const int dim = basis_dim(c, of);
    add_first(shape, {values                 ? "attention_values_to_basis"
                      : of == BasisOf::kKeys ? "attention_keys_to_basis"
                                             : "attention_to_basis",
                      values ? "values_to_basis" : "to_basis", kinds, c.kv_heads,
                      basis_blocks(c.kv_heads * kinds, batch * c.query_tokens), basis_threads(dim),
                      basis_tiles_shared(dim) + sinks, true, false});
  });
  if (ends_with_basis(c)) {
    shape.add({"attention_from_basis", "from_basis", 1, c.kv_heads,
               basis_blocks(c.kv_heads, batch * c.query_tokens), basis_threads(c.value_dim),
               basis_tiles_shared(c.value_dim) + sinks, true, false});
  }
  if (!takes_out_of_basis(c)) hand_basis(shape, basis_rows(c, batch).total);
}

// Shape of a dataflow with one kernel besides the merge kernel.
template <class Plan>
VQ_HD constexpr CallShape attention_shape(const AttentionConfig<Plan>& c, i64 batch,
                                          i64 shared_bytes, bool ahead) {
  CallShape shape{};
  shape.add({Plan::kName, "", c.splits, i64{c.kv_heads} * head_blocks(c), balanced(c) ? 1 : batch,
             c.threads, shared_bytes, ahead, true});
  add_attention_workspace(c, batch, 0, shape);
  return shape;
}

}  // namespace vq
