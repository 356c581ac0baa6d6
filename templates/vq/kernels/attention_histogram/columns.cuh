// Columns, head pairs and the workspace that the kernels of histogram attention share
// (kernels/attention_histogram/plan.h).
#pragma once

#include <vq/kernels/attention_histogram/plan.h>
#include <vq/codebook/entry.cuh>
#include <vq/ops/attention_work.cuh>

namespace vq {

// Formats: a part of the keys, or all of them; and the values.
template <class Plan, int kPart>
struct BinKeys {
  VQ_HD static constexpr FormatConfig config() { return key_format(Plan::config(), kPart); }
};
template <class Plan>
struct BinValues {
  VQ_HD static constexpr FormatConfig config() { return Plan::config().values; }
};

// The entries of a column, counted within the format's channels.
template <class Format>
VQ_DEVICE const u16* column_entries(const QuantizedArgs& tensor, int kv_head, int column) {
  constexpr FormatConfig kFormat = Format::config();
  constexpr int kUnits = kFormat.part.channels / kFormat.unit_elements;  // codebook sets per head
  constexpr i64 kBook = i64{entries(kFormat)} * kFormat.vector_size;
  const int channel = column / kFormat.num_codebooks * kFormat.vector_size;
  const i64 unit =
      kFormat.per_head ? i64{kv_head} * kUnits + channel / kFormat.unit_elements : i64{0};
  return tensor.codebooks + kFormat.part.first_element +
         (unit * kFormat.num_codebooks + column % kFormat.num_codebooks) * kBook;
}

// A row of the products: a head of a sequence.
template <class Plan>
struct BinRow {
  static constexpr int kPadded = padded_heads(Plan::config());
  static constexpr int kGroup = group(Plan::config());
  int pair, head;  // head within the pair's padded heads
  int kv_head, batch;

  VQ_DEVICE static BinRow at(const AttentionDecodeArgs& args, int row) {
    const int pair = row / kPadded;
    return {pair, row % kPadded, pair / args.batch, pair % args.batch};
  }
  VQ_DEVICE bool is_head() const { return head < kGroup; }
  VQ_DEVICE int query_head() const { return kv_head * kGroup + head; }
};

// Rows [first, first + count) of the block, of those with the same codebooks.
struct BinRows {
  int first, count;

  // Rows of block number `block` with at most `most` rows each; z is the KV head if each head has
  // its own codebooks.
  template <class Plan, class Format>
  VQ_DEVICE static BinRows of_block(const AttentionDecodeArgs& args, int block, int most) {
    constexpr BinSizes kSizes = bin_sizes(Plan::config());
    constexpr bool kPerHead = Format::config().per_head;
    const int rows = static_cast<int>(kSizes.unit_rows(kPerHead, args.batch));
    const int before = block * most;
    const int left = kPerHead || block_z() == 0 ? rows - before : 0;
    return {block_z() * rows + before, left < most ? left : most};
  }
};

// The buffers that kernels pass on. Construct it once: offsets are computed from the call's sizes.
template <class Plan>
struct BinsWorkspace {
  static constexpr i64 kPairTables = bin_sizes(Plan::config()).pair_tables / 2;

  const AttentionDecodeArgs& args;
  BinsHanded at;

  VQ_DEVICE static constexpr BinSizes sizes() {
    constexpr BinSizes kSizes = bin_sizes(Plan::config());
    return kSizes;
  }
  VQ_DEVICE explicit BinsWorkspace(const AttentionDecodeArgs& call)
      : args(call), at(bins_handed(sizes(), call.batch, call.capacity)) {}

  // The tables of a pair; the next pair's start kPairTables halves later.
  VQ_DEVICE u16* tables(int pair) const { return part<u16>(at.tables) + pair * kPairTables; }
  // The overflow value that belongs to a number of the tables, which are contiguous from pair 0 on.
  VQ_DEVICE i32* large(const u16* number) const {
    return part<i32>(at.large) + (number - tables(0));
  }
  // Powers of a pair's tokens, those of a block of heads, and the maxima of each block of scores.
  VQ_DEVICE u16* powers(int pair) const {
    return part<u16>(at.powers) + pair * sizes().pair_powers(args.capacity);
  }
  VQ_DEVICE i64 head_powers() const {  // elements from one block of heads to the next
    constexpr int kHeads = bin_heads(Plan::config());
    return sizes().pair_powers(args.capacity) / padded_heads(Plan::config()) * kHeads;
  }
  VQ_DEVICE float* maxima(int pair) const {
    return part<float>(at.maxima) + pair * sizes().pair_maxima(args.capacity);
  }
  // Total of a GEMM row.
  VQ_DEVICE float* total(int row) const { return part<float>(at.totals) + row; }
  VQ_DEVICE u16* bins(int split, int column, int row) const {
    constexpr int kEntries = entries(Plan::config().values);
    return part<u16>(at.bins) + split * split_bins() +
           (column * sizes().rows(args.batch) + row) * kEntries;
  }
  // Elements from one split's bins to the next split's.
  VQ_DEVICE i64 split_bins() const { return sizes().rows(args.batch) * sizes().split_entries; }

 private:
  template <class T>
  VQ_DEVICE T* part(i64 offset) const {
    return reinterpret_cast<T*>(reinterpret_cast<u8*>(args.scores) + offset);
  }
};
// Halves from a pair's first table to the table of a column of a part of the keys.
template <class Plan, int kPart>
VQ_DEVICE i64 column_table(int column) {
  constexpr i64 kBefore = tables_before(Plan::config(), kPart) / 2;
  constexpr i64 kColumn = table_bytes(Plan::config(), key_format(Plan::config(), kPart)) / 2;
  return kBefore + column * kColumn;
}

// Words of the codes of four tokens that follow each other, from a multiple of four on; of those
// past token `last` another token's.
template <class Format, class Plan>
struct FourRows {
  using Rows = CodeRows<Format, Plan>;
  static constexpr int kWords = Rows::kWords;
  static constexpr int kRows = Rows::kLayout.rows < 4 ? Rows::kLayout.rows : 4;
  static constexpr int kTogether = Rows::kLayout.words == 1 ? kRows : 1;

  const u32* rows;  // rows of the pair
  int last;

  VQ_DEVICE FourRows(const QuantizedArgs& tensor, int batch, int kv_head, int length)
      : rows(Rows::at(tensor, batch, kv_head, 0)), last(length - 1) {}

  VQ_DEVICE void load(u32 (&to)[4], int token, int word) const {
    VQ_UNROLL
    for (int i = 0; i < 4; i += kTogether) {
      load_words<kTogether>(to + i, at(token, i, word), LoadGlobal());
    }
  }
  // load() to shared memory, for this thread after it has waited.
  VQ_DEVICE void copy(u32* to, int token, int word) const {
    using Words = EntryWords<2 * kTogether>;
    VQ_UNROLL
    for (int i = 0; i < 4; i += kTogether) {
      copy_async(reinterpret_cast<Words*>(to + i),
                 reinterpret_cast<const Words*>(at(token, i, word)));
    }
  }

 private:
  VQ_DEVICE const u32* at(int token, int i, int word) const {
    constexpr u32 kGroup = Rows::kLayout.rows;
    const auto clipped =
        static_cast<u32>(token + i < last ? token + i : last / kTogether * kTogether);
    return wide_step(rows, clipped / kGroup, kGroup * Rows::kStoredWords * 4) +
           (clipped % kGroup * Rows::kLayout.words + Rows::word(word < kWords ? word : kWords - 1));
  }
};

}  // namespace vq
