// Plan of histogram attention, for wide entries in many stages (VQKV): no entry is read per token.
// Inner products of queries with all key entries are computed once, probabilities are summed per
// value entry, and tensor cores multiply these sums by the value entries.
//
// A *column* is one residual stage of one sub-vector, what one code of a row names, counted through
// the parts of the keys. A *pair* is a KV head and a sequence.
#pragma once

#include <vq/layout/attention.h>

namespace vq {

struct AttentionHistogram {
  int threads = 512;
  int tokens_per_thread = 16;
  int tables_in_flight = 2;
  int shared_entries = 65536;
  int splits = 1;
  int bin_threads = 1024;
  int columns_per_block = 1;
  int bin_heads = 8;
  int bin_slices = 1;
  int entry_splits = 1;
  int rows_per_block = 32;

  static constexpr const char* kType = "AttentionHistogram";
  static constexpr const char* kName = "attention_histogram";
  // Each block serves all heads of a KV head, and all channels.
  static constexpr int heads_per_block = 8;
  static constexpr int key_channel_splits = 1;
  static constexpr int value_channel_splits = 1;
  static constexpr Combine combine = Combine::kernel;
  static constexpr Placement key_codebook{};
  static constexpr Placement value_codebook{};

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AttentionHistogram;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("tokens_per_thread", &P::tokens_per_thread, Range{4, 64},
          "tokens whose scores a thread sums up in registers, a multiple of 4");
    visit("tables_in_flight", &P::tables_in_flight, Range{1, 2},
          "score tables of a column in shared memory: 2, one of which arrives meanwhile, or 1");
    visit("shared_entries", &P::shared_entries, Range{0, 65536},
          "entries of the largest key codebook whose score tables are in shared memory; those of "
          "larger ones are looked up in global memory");
    visit("splits", &P::splits, Range{1, 1024}, Doc::kTokenSplits);
    visit("bin_threads", &P::bin_threads, Range{32, 1024}, "threads of a block of bins");
    visit("columns_per_block", &P::columns_per_block, Range{1, 256},
          "value columns whose bins a block has in shared memory");
    visit(
        "bin_heads", &P::bin_heads, Range{1, 8},
        "heads whose bins a block has, a power of two; all heads of a KV head if there are fewer");
    visit("bin_slices", &P::bin_slices, Range{1, 256},
          "blocks that share the entries of a value column as bins, a power of two");
    visit("entry_splits", &P::entry_splits, Range{1, 256},
          "blocks that share the entries of a value column as factors, a power of two");
    visit("rows_per_block", &P::rows_per_block, Range{16, 128},
          "heads of sequences whose bins a block multiplies with the entries, a multiple of 16");
  }
};

using BinsConfig = AttentionConfig<AttentionHistogram>;

// Heads of a KV head in memory: the next power of two, up to 8; padding heads are zeros.
VQ_HD constexpr int padded_heads(const BinsConfig& c) {
  int heads = 1;
  while (heads < group(c)) heads *= 2;
  return heads;
}
VQ_HD constexpr int columns_of(const FormatConfig& f) {
  return f.part.channels / f.vector_size * f.num_codebooks;
}
VQ_HD constexpr i64 table_bytes(const BinsConfig& c, const FormatConfig& f) {
  return i64{entries(f)} * padded_heads(c) * 2;
}
// All columns of the keys.
VQ_HD constexpr int key_columns(const BinsConfig& c) {
  int columns = 0;
  for (int i = 0; i < key_formats(c); ++i) columns += columns_of(key_format(c, i));
  return columns;
}
// Scores are sums of integers in units of 2^-score_bits() of log2: as few bits as leave a sum of
// all columns, each rounded once, a standard deviation of 2^-11.
VQ_HD constexpr int score_bits(const BinsConfig& c) {
  int bits = 10;
  for (i64 columns = 3; columns < key_columns(c); columns *= 4) ++bits;
  return bits;
}
// A table's number is such an integer plus kScoreBias, in 16 bits. 0 marks a pair of heads that
// does not fit: its value is looked up in 32 bits, clamped where sums could overflow.
inline constexpr i32 kScoreBias = 32768;
inline constexpr i32 kNoScore = -0x7fffffff;  // score of a value that is not finite
VQ_HD constexpr i32 most_score(const BinsConfig& c) {
  return 0x7fffffff / key_columns(c) - 2 * kScoreBias;
}
// Bytes of the tables of the parts before `part`, of a pair; all with key_parts().
VQ_HD constexpr i64 tables_before(const BinsConfig& c, int part) {
  i64 bytes = 0;
  for (int i = 0; i < part; ++i) {
    bytes += columns_of(key_format(c, i)) * table_bytes(c, key_format(c, i));
  }
  return bytes;
}

// Tables: a block makes some entries of a sub-vector, counted through its stages, for some rows.
inline constexpr int kTableThreads = 128;
inline constexpr int kTableEntries = 512;
inline constexpr int kTableRows = 128;
inline constexpr int kTableBlocks = 3;  // blocks per SM; 4 write to more places at a time
VQ_HD constexpr int sub_vector_entries(const FormatConfig& f) {
  return entries(f) * f.num_codebooks;
}
VQ_HD constexpr int entry_blocks(const FormatConfig& f) {  // per sub-vector
  return ceil_div(sub_vector_entries(f), kTableEntries);
}

// The scores. Buffers of tables in shared memory of a part's columns:
VQ_HD constexpr int tables_in_flight(const BinsConfig& c, const FormatConfig& f) {
  return entries(f) <= c.shared_entries ? c.tables_in_flight : 0;
}
VQ_HD constexpr i64 most_table_bytes(const BinsConfig& c) {
  i64 bytes = 0;
  for (int i = 0; i < key_formats(c); ++i) {
    const i64 own =
        tables_in_flight(c, key_format(c, i)) > 0 ? table_bytes(c, key_format(c, i)) : 0;
    if (own > bytes) bytes = own;
  }
  return bytes;
}
// A block has so many tokens.
VQ_HD constexpr int tokens_per_block(const BinsConfig& c) {
  return c.threads * c.tokens_per_thread;
}
VQ_HD constexpr i64 score_blocks(const BinsConfig& c, i64 tokens) {
  return ceil_div(tokens, i64{tokens_per_block(c)});
}
struct ScoresShared {
  i64 tables;   // [tables_in_flight] of one column: [entry][padded head] u16
  i64 words;    // [four tokens][4] u32: the next word of their codes
  i64 running;  // [warp][padded head] fp32
  i64 total;
};
VQ_HD constexpr ScoresShared scores_shared(const BinsConfig& c) {
  ScoresShared at{};
  Carver carve;
  at.tables = carve(c.tables_in_flight * most_table_bytes(c));
  at.words = carve(i64{tokens_per_block(c)} * 4);
  at.running = carve(i64{c.threads} / 32 * padded_heads(c) * 4);
  at.total = carve.next;
  return at;
}

// Histograms: a block has a slice of the entries of some columns, for some heads.
VQ_HD constexpr int bin_heads(const BinsConfig& c) {  // heads whose powers are contiguous
  return c.bin_heads < padded_heads(c) ? c.bin_heads : padded_heads(c);
}
VQ_HD constexpr int summed_heads(const BinsConfig& c) {  // heads per block
  return c.bin_heads < group(c) ? c.bin_heads : group(c);
}
VQ_HD constexpr int bin_head_blocks(const BinsConfig& c) {
  return ceil_div(group(c), bin_heads(c));
}
VQ_HD constexpr int slice_entries(const BinsConfig& c) { return entries(c.values) / c.bin_slices; }
VQ_HD constexpr int column_blocks(const BinsConfig& c) {
  return ceil_div(columns_of(c.values), c.columns_per_block);
}
// Words of a row with the codes of a block's columns, at most.
VQ_HD constexpr int block_words(const BinsConfig& c) {
  int words = 0;
  for (int first = 0; first < columns_of(c.values); first += c.columns_per_block) {
    const int end = first + c.columns_per_block < columns_of(c.values) ? first + c.columns_per_block
                                                                       : columns_of(c.values);
    words = most(words, ceil_div(end * c.values.index_bits, 32) - first * c.values.index_bits / 32);
  }
  return words;
}
struct BinsShared {
  i64 bins;     // [column of the block][head of the block][entry of the slice] u32
  i64 softmax;  // [2][head of the block] fp32: maximum, factor
  i64 total;
};
VQ_HD constexpr BinsShared bins_shared(const BinsConfig& c) {
  BinsShared at{};
  Carver carve;
  at.bins = carve(i64{c.columns_per_block} * summed_heads(c) * slice_entries(c) * 4);
  at.softmax = carve(i64{2} * bin_heads(c) * 4);
  at.total = carve.next;
  return at;
}

// GEMM of histograms and entries: both pass through shared memory in tiles of some entries, whose
// rows start at 16 bytes past a multiple of 32 to avoid bank conflicts of eight rows.
inline constexpr int kProductThreads = 256;
inline constexpr int kProductTiles = 3;  // one is multiplied, the others arrive
VQ_HD constexpr int product_tile(const BinsConfig& c) {
  const int share = entries(c.values) / c.entry_splits;
  return share < 64 ? share : 64;
}
struct BinProductsShared {
  i64 bins;     // [tile][row][entry] elements
  i64 entries;  // [tile][entry][channel of the sub-vector] elements
  i64 total;
};
VQ_HD constexpr int tile_bin_bytes(const BinsConfig& c) { return product_tile(c) * 2 + 16; }
VQ_HD constexpr int tile_entry_bytes(const BinsConfig& c) { return c.values.vector_size * 2 + 16; }
VQ_HD constexpr BinProductsShared bin_products_shared(const BinsConfig& c) {
  BinProductsShared at{};
  Carver carve;
  at.bins = carve(i64{kProductTiles} * c.rows_per_block * tile_bin_bytes(c));
  at.entries = carve(i64{kProductTiles} * product_tile(c) * tile_entry_bytes(c));
  at.total = carve.next;
  return at;
}

// Raw tokens per block.
inline constexpr int kRawThreads = 128;
inline constexpr int kRawTokens = 128;
VQ_HD constexpr int raw_blocks(const BinsConfig& c) { return ceil_div(raw_slots(c), kRawTokens); }

// Partials of a head: one for each stage and split of the entries, which covers all sub-vectors'
// channels; then those of raw tokens.
VQ_HD constexpr int product_partials(const BinsConfig& c) {
  return c.values.num_codebooks * c.entry_splits;
}
VQ_HD constexpr int partial_count(const BinsConfig& c) {
  return product_partials(c) + raw_blocks(c);
}
VQ_HD constexpr bool has_partials(const BinsConfig&) { return true; }

// Inputs of a call's sizes, on the device too. They are plain numbers, as a thread that evaluates a
// whole config at run time builds it in local memory.
struct BinSizes {
  int kv_heads;
  int heads;          // padded, of a pair
  i64 pair_tables;    // bytes
  int block_tokens;   // tokens per block of scores
  i64 split_entries;  // entries of all value columns
  int splits;
  bool keys_per_head;  // all parts of them

  VQ_HD constexpr i64 pairs(i64 batch) const { return kv_heads * batch; }
  // GEMM rows, [pair][padded head]: those of one KV head are contiguous.
  VQ_HD constexpr i64 rows(i64 batch) const { return pairs(batch) * heads; }
  // Rows that share codebooks.
  VQ_HD constexpr i64 unit_rows(bool per_head, i64 batch) const {
    return (per_head ? batch : pairs(batch)) * heads;
  }
  // Blocks that share the rows of a column's tables; the block is the faster along the grid, so
  // that its entries come from memory once.
  VQ_HD constexpr i64 table_row_blocks(i64 batch) const {
    return ceil_div(unit_rows(keys_per_head, batch), i64{kTableRows});
  }
  VQ_HD constexpr i64 pair_powers(i64 tokens) const { return ceil_div(tokens, i64{4}) * 4 * heads; }
  VQ_HD constexpr i64 pair_maxima(i64 tokens) const {
    return ceil_div(tokens, i64{block_tokens}) * 2 * heads;
  }
};
VQ_HD constexpr BinSizes bin_sizes(const BinsConfig& c) {
  bool per_head = true;
  for (int i = 0; i < key_formats(c); ++i) per_head = per_head && key_format(c, i).per_head;
  return {c.kv_heads,
          padded_heads(c),
          tables_before(c, key_formats(c)),
          tokens_per_block(c),
          i64{columns_of(c.values)} * entries(c.values),
          c.splits,
          per_head};
}

// Buffers that kernels pass on, in bytes from args.scores.
struct BinsHanded {
  i64 tables;  // [pair][column][entry][padded head] u16: scores
  i64 large;   // as `tables`, i32: scores of head pairs that 16 bits do not hold
  i64 powers;  // [pair][block of heads][token, a multiple of 4][head of the block] f16:
               // exp2(score - the largest of its block of scores) times kPowerScale; 0 of raw
               // tokens
  i64 maxima;  // [pair][block of scores][2][padded head] fp32: the largest score, and the sum of
               // exp2 of the others less that one
  i64 totals;  // [pair][padded head] fp32: log2 of the sum of exp2 of all scores
  i64 bins;    // [split][column][row of products][entry] elements: shares of all probability,
               // times kBinScale
  i64 total;
};
inline constexpr float kBinScale = 32768.0f;
inline constexpr float kPowerScale = 32768.0f;
VQ_HD constexpr BinsHanded bins_handed(const BinSizes& s, i64 batch, i64 tokens) {
  BinsHanded at{};
  Carver carve;
  at.tables = carve(s.pairs(batch) * s.pair_tables);
  at.large = carve(s.pairs(batch) * s.pair_tables * 2);
  at.powers = carve(s.pairs(batch) * s.pair_powers(tokens) * 2);
  at.maxima = carve(s.pairs(batch) * s.pair_maxima(tokens) * 4);
  at.totals = carve(s.rows(batch) * 4);
  at.bins = carve(s.splits * s.rows(batch) * s.split_entries * 2);
  at.total = carve.next;
  return at;
}

VQ_HD constexpr CallShape call_shape(const BinsConfig& c, i64 batch, i64 tokens) {
  CallShape shape{};
  const BinSizes sizes = bin_sizes(c);
  i64 table_blocks = 0, units = 1;
  int staged = 0;
  for (int i = 0; i < key_formats(c); ++i) {
    const FormatConfig f = key_format(c, i);
    table_blocks += i64{columns_of(f)} / f.num_codebooks * entry_blocks(f);
    staged = most(staged, kTableRows * f.vector_size * 2);
    if (f.per_head) units = c.kv_heads;
  }
  shape.add({"attention_histogram_tables", "tables", table_blocks * sizes.table_row_blocks(batch),
             1, units, kTableThreads, staged, false, false, 0, 1, kTableBlocks, true});
  shape.add({"attention_histogram_scores", "scores", score_blocks(c, tokens), c.kv_heads, batch,
             c.threads, scores_shared(c).total, false, true, 0, 1, 0, true});
  shape.add({"attention_histogram_fill", "bins", c.splits,
             i64{c.kv_heads} * column_blocks(c) * bin_head_blocks(c) * c.bin_slices, batch,
             c.bin_threads, bins_shared(c).total, false, true, 0, 1, 0, true});
  const i64 row_blocks = ceil_div(sizes.unit_rows(c.values.per_head, batch), i64{c.rows_per_block});
  shape.add({"attention_histogram_products", "products",
             row_blocks * columns_of(c.values) * c.entry_splits, 1,
             c.values.per_head ? c.kv_heads : 1, kProductThreads, bin_products_shared(c).total,
             true, false, 2});
  if (raw_slots(c) > 0) {
    shape.add({"attention_histogram_raw", "raw", raw_blocks(c), c.kv_heads, batch, kRawThreads,
               i64{kRawThreads} / 32 * group(c) * (c.head_dim + 2) * 4, false, false});
  }
  add_attention_workspace(c, batch, bins_handed(sizes, batch, tokens).total, shape);
  return shape;
}

}  // namespace vq
