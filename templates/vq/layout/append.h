// The common part of kv_append's dataflows: the problem, how blocks share rows, and their shared
// memory. A dataflow fixes some of a plan's fields as constants:
//
//   tokens_per_block, splits     of a block
//   sequences_per_block          whose tokens a block encodes at once
//   warps_along_entries          warps that share the entries of a codebook
//   sub_vectors_per_warp         that are compared with an entry once it is loaded
//   norms                        true if the block keeps |c|^2 / 2 of the entries, computed before
//                                it waits for the previous launch
#pragma once

#include <vq/layout/basis.h>
#include <vq/layout/launch.h>
#include <vq/layout/parts.h>

namespace vq {

// What a kernel knows of its problem; the launch sets the batch. A block encodes whole words of a
// share of up to tokens_per_block rows per sequence. Grid: (blocks of tokens x (shares of a key +
// of a value, of each of its parts), kv_heads, blocks of sequences).
struct AppendProblem {
  Element element;
  int head_dim;   // channels of keys
  int value_dim;  // of values
  int kv_heads;
  int new_tokens;
  int max_recent_tokens;  // slots of the raw ring of newest tokens
  int flush_block;        // tokens that leave the window together
  int max_sinks;          // slots of raw first tokens
  int page_tokens;        // 0: a cache without pages
  int raw_page_tokens;    // 0: raw tokens in slots
  FormatConfig keys;      // in parts: the first
  FormatConfig values;    // in parts: the first
  Parts key_parts;
  Parts value_parts;
  Basis key_basis;
  Basis value_basis;

  static constexpr const char* kType = "AppendProblem";
  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AppendProblem;
    visit("element", &P::element);
    visit("head_dim", &P::head_dim);
    visit("value_dim", &P::value_dim);
    visit("kv_heads", &P::kv_heads);
    visit("new_tokens", &P::new_tokens);
    visit("max_recent_tokens", &P::max_recent_tokens);
    visit("flush_block", &P::flush_block);
    visit("max_sinks", &P::max_sinks);
    visit("page_tokens", &P::page_tokens);
    visit("raw_page_tokens", &P::raw_page_tokens);
    visit("keys", &P::keys);
    visit("values", &P::values);
    visit("key_parts", &P::key_parts);
    visit("value_parts", &P::value_parts);
    visit("key_basis", &P::key_basis);
    visit("value_basis", &P::value_basis);
  }
};

// Problem and plan side by side. Codebooks are read from global memory, which no plan changes.
template <class Plan>
struct AppendConfig : AppendProblem, Plan {};

template <class Plan>
VQ_HD constexpr AppendConfig<Plan> configure(const AppendProblem& problem, const Plan& plan) {
  AppendConfig<Plan> c{problem, plan};
  place_parts(c);
  return c;
}

template <class Plan>
VQ_HD constexpr int sub_vectors(const AppendConfig<Plan>&, const FormatConfig& f) {
  return f.part.channels / f.vector_size;
}

// Sub-vectors whose codes fill whole words, the least number of them.
VQ_HD constexpr int word_sub_vectors(const FormatConfig& f) {
  int count = 1;
  while (count * f.num_codebooks * f.index_bits % 32 != 0) count *= 2;
  return count;
}

// Sub-vectors per block, and blocks that have some; the last may have fewer.
template <class Plan>
VQ_HD constexpr int share_sub_vectors(const AppendConfig<Plan>& c, const FormatConfig& f) {
  const int all = sub_vectors(c, f);
  const int wanted = round_up(ceil_div(all, c.splits), word_sub_vectors(f));
  return wanted < all ? wanted : all;
}
template <class Plan>
VQ_HD constexpr int shares(const AppendConfig<Plan>& c, const FormatConfig& f) {
  return ceil_div(sub_vectors(c, f), share_sub_vectors(c, f));
}
// Blocks that share a key, or a value: each of its parts has its own.
template <class Plan>
VQ_HD constexpr int key_shares(const AppendConfig<Plan>& c) {
  int all = 0;
  for (int i = 0; i < key_formats(c); ++i) all += shares(c, key_format(c, i));
  return all;
}
template <class Plan>
VQ_HD constexpr int value_shares(const AppendConfig<Plan>& c) {
  int all = 0;
  for (int i = 0; i < value_formats(c); ++i) all += shares(c, value_format(c, i));
  return all;
}
// Sub-vectors of a unit that a share has, at most.
template <class Plan>
VQ_HD constexpr int unit_sub_vectors(const AppendConfig<Plan>& c, const FormatConfig& f) {
  const int share = share_sub_vectors(c, f);
  const int of_unit = f.unit_elements / f.vector_size;
  return share < of_unit ? share : of_unit;
}
// Units that a share has sub-vectors of, at most.
template <class Plan>
VQ_HD constexpr int share_units(const AppendConfig<Plan>& c, const FormatConfig& f) {
  const int share = share_sub_vectors(c, f);
  const int of_unit = f.unit_elements / f.vector_size;
  if (of_unit % share == 0) return 1;
  return share % of_unit == 0 ? share / of_unit : ceil_div(share, of_unit) + 1;
}
// Most tokens of a sequence that a call visits: its new ones, and earlier calls' tokens that share
// a batch with the first of them.
VQ_HD constexpr int visited_tokens(const AppendProblem& c) {
  return c.new_tokens + (c.flush_block - 1);
}
template <class Plan>
VQ_HD constexpr int token_blocks(const AppendConfig<Plan>& c) {
  return ceil_div(visited_tokens(c), c.tokens_per_block);
}
// True if a call may overwrite a ring slot that it also reads: then each row has one block.
VQ_HD constexpr bool takes_slots(const AppendProblem& c) {
  return c.flush_block > 1 && visited_tokens(c) > c.max_recent_tokens;
}

// Sub-vectors that are compared together: runs of one length tile the channels of each codebook.
// Wide ones are compared one by one, from shared memory.
template <class Plan>
VQ_HD constexpr int run_sub_vectors(const AppendConfig<Plan>& c, const FormatConfig& f) {
  if (entry_pieces(f) > 1) return 1;
  const int of_unit = f.unit_elements / f.vector_size;
  int run = c.sub_vectors_per_warp < of_unit ? c.sub_vectors_per_warp : of_unit;
  while (of_unit % run != 0) --run;
  return run;
}

// Rows that a block encodes at once, sequence by sequence: a whole group if tokens share scales.
template <class Plan>
VQ_HD constexpr int block_rows(const AppendConfig<Plan>& c, const FormatConfig& f) {
  return f.scale_tokens > 0 ? f.scale_tokens : c.tokens_per_block * c.sequences_per_block;
}

// True if the search of a format keeps |c|^2 / 2 of its entries. The mma dataflow compares wide
// entries, which some parts have, as simt does.
template <class Plan>
VQ_HD constexpr bool keeps_norms(const AppendConfig<Plan>& c, const FormatConfig&) {
  return c.norms;
}

// Bytes of shared memory that a dataflow's search has to itself.
template <class Plan>
VQ_HD constexpr i64 search_bytes(const AppendConfig<Plan>&, const FormatConfig&) {
  return 0;
}

// Floats from a row in shared memory to the next.
template <class Plan>
VQ_HD constexpr int row_floats(const AppendConfig<Plan>&, const FormatConfig& f) {
  return f.part.channels;
}

// Byte offsets into the block's shared memory; `rows` are block_rows().
struct AppendShared {
  i64 rows;   // [rows][row_floats()] fp32: transformed, then what stages leave of it
  i64 norms;  // [units of the share][entries] fp32, |c|^2 / 2 of a stage, where a plan has norms
  i64 distances;  // [rows][share][warps_along_entries] fp32, of the nearest; none
                  // beside norms
  i64 nearest;    // as above, u32: candidates
  i64 codes;      // [rows][share][residuals] u32
  i64 scales;     // [rows] scale words of a row, where tokens have scales
  i64 works;      // [sequences_per_block] the work in each, if there are several
  i64 search;     // search_bytes()
  i64 total;
};

template <class Plan>
VQ_HD constexpr AppendShared shared_layout(const AppendConfig<Plan>& c, const FormatConfig& f) {
  AppendShared at{};
  Carver carve;
  const i64 rows = block_rows(c, f);
  const i64 vectors = rows * share_sub_vectors(c, f);
  at.rows = carve(rows * row_floats(c, f) * 4);
  at.norms = carve(keeps_norms(c, f) ? i64{share_units(c, f)} * entries(f) * 4 : i64{0});
  at.distances = carve(keeps_norms(c, f) ? i64{0} : vectors * c.warps_along_entries * 4);
  at.nearest = carve(vectors * c.warps_along_entries * 4);
  at.codes = carve(vectors * f.num_codebooks * 4);
  at.scales = carve(f.token_scales ? rows * scale_words(f, f.part.channels) * 4 : i64{0});
  at.works = carve(c.sequences_per_block > 1 ? i64{c.sequences_per_block} * 16 : i64{0});
  at.search = carve(search_bytes(c, f));
  at.total = carve.next;
  return at;
}

// The most of any tensor or part.
template <class Plan>
VQ_HD constexpr i64 block_shared_bytes(const AppendConfig<Plan>& c) {
  i64 bytes = 0;
  for_each_format(c, [&](const FormatConfig& f) {
    const i64 of_format = shared_layout(c, f).total;
    if (of_format > bytes) bytes = of_format;
  });
  return bytes;
}

// What a call hands on of rows in the basis.
VQ_HD constexpr BasisRows basis_rows(const AppendProblem& c, i64 batch) {
  BasisRows at{};
  Carver carve;
  const i64 rows = batch * c.new_tokens * c.kv_heads;
  at.keys = carve(c.key_basis.none() ? 0 : rows * c.head_dim * 2);
  at.values = carve(c.value_basis.none() ? 0 : rows * c.value_dim * 2);
  at.total = carve.next;
  return at;
}

// Adds the kernel that changes the basis.
VQ_HD constexpr void add_basis(CallShape& shape, const AppendProblem& c, i64 batch) {
  const i64 tiles = ceil_div(batch * c.new_tokens, i64{kBasisTile});
  for_each_basis(c, [&](BasisOf of) {
    const bool values = of == BasisOf::kValues;
    const int dim = basis_dim(c, of);
    add_first(shape, {values                 ? "append_values_to_basis"
                      : of == BasisOf::kKeys ? "append_keys_to_basis"
                                             : "append_to_basis",
                      values ? "values_to_basis" : "to_basis", tiles * basis_operands(c, of),
                      c.kv_heads, 1, basis_threads(dim), basis_shared(dim), true, false});
  });
  hand_basis(shape, basis_rows(c, batch).total);
}

template <class Plan>
VQ_HD constexpr CallShape append_shape(const AppendConfig<Plan>& c, const char* function,
                                       i64 batch) {
  CallShape shape{};
  const i64 blocks = i64{token_blocks(c)} * (key_shares(c) + value_shares(c));
  const i64 sequences = ceil_div(batch, i64{c.sequences_per_block});
  shape.add({function, "", blocks, c.kv_heads, sequences, c.threads, block_shared_bytes(c), c.norms,
             true});
  return shape;
}

}  // namespace vq
