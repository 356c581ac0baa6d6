// Addresses of cached tokens, codes and raw rows: the only code that turns a sequence, a KV head
// and a token into an address, for kv_append's writes and attention_decode's reads.
//
//   CodeRows   [sequence][kv head][token] of packed codes, in u32 words; tokens in groups, words
//              of a row in runs (layout/codes.h). Paged: a sequence's page of `page_tokens` tokens
//              at a time, pages anywhere, in the caller's order within a page
//   RawRows    [sequence][kv head][slot][channel] of 16-bit elements, keys or values; first tokens
//              have slots of their own (sinks), followed by the ring of the newest. Paged: a row
//              for every token, in pages of `raw_page_tokens` with a table of their own
//
// Strides of sequences and heads are those of the arguments (args/), in words or elements.
#pragma once

#include <vq/layout/parts.h>
#include <vq/machine.cuh>

namespace vq {

// Addresses of one tensor's codes; `Format` has FormatConfig config(). Word w of a token's row is
// at(.., token) + word(w); at(.., a) + row(b) is the row of token a + b if a and b share no bits
// below the group size. Paged: at(), or page() + in_page() + paged_row().
template <class Format, class Plan>
struct CodeRows {
  static constexpr FormatConfig kFormat = Format::config();
  static constexpr int kPageTokens = Plan::config().page_tokens;
  static constexpr bool kPaged = kPageTokens > 0;
  static constexpr CodeLayout kLayout = kFormat.layout;
  // Words of a row, or of its part in this format.
  static constexpr int kWords = static_cast<int>(row_words(kFormat, kFormat.part.channels));
  static constexpr int kFirstWord = kFormat.part.first_word;
  // Words from a row to the next, if rows were not grouped.
  static constexpr int kStoredWords =
      static_cast<int>(padded_words(kLayout, kFormat.part.row_words));

  // The first word of a token's row, or of its part. `Tensor` is QuantizedArgs, or EncodedArgs to
  // write.
  template <class Tensor, class Int>
  VQ_DEVICE static auto at(const Tensor& tensor, int batch, int head, Int token) {
    if constexpr (kPaged) {
      const int number = static_cast<int>(token);
      const i32 page = load_global(table(tensor, batch) + number / kPageTokens);
      return tensor.codes + head * tensor.head_stride + page_words(tensor, page) +
             paged_row(tensor, number % kPageTokens) + word(kFirstWord);
    } else {
      return tensor.codes + batch * tensor.batch_stride + head * tensor.head_stride + row(token) +
             word(kFirstWord);
    }
  }

  // The pages of a sequence; words to a page, and in it to the row of a token.
  template <class Tensor>
  VQ_DEVICE static const i32* table(const Tensor& tensor, int batch) {
    return tensor.pages + batch * tensor.page_columns;
  }
  template <class Tensor>
  VQ_DEVICE static i64 page_words(const Tensor& tensor, i32 page) {
    return static_cast<i64>(u64{static_cast<u32>(page)} * static_cast<u32>(tensor.batch_stride));
  }
  template <class Tensor>
  VQ_DEVICE static int paged_row(const Tensor& tensor, int token) {
    constexpr int kRows = kLayout.rows;
    const int words = static_cast<i32>(tensor.token_stride);
    if constexpr (kRows == 1) return token * words;
    return token / kRows * (kRows * words) + token % kRows * kLayout.words;
  }

  // Words from a row to the one `tokens` on, see above; from a row's first word to word `number`.
  template <class Int>
  VQ_DEVICE static Int row(Int tokens) {
    return row_place(kLayout, Int{kStoredWords}, tokens);
  }
  VQ_DEVICE static int word(int number) { return word_place(kLayout, number); }
  // row() of whole groups of tokens.
  VQ_DEVICE static int groups(int tokens) { return tokens * kStoredWords; }
};

// Position of a format's channel in a head. The table is static: each thread would build a local
// one in its own memory.
template <class Format, class Plan>
VQ_DEVICE int channel_of(int channel) {
  constexpr RowPart kPart = Format::config().part;
  if constexpr (kPart.in_parts) {
    static constexpr ChannelTable kChannels =
        part_channels(kPart.of_values ? Plan::config().value_parts : Plan::config().key_parts);
    return kChannels.at[kPart.first_channel + channel];
  } else {
    return channel;
  }
}

// A tensor as the kernels of a part take it: with its own codebooks and scales.
template <class Format, class Tensor>
VQ_DEVICE Tensor part_tensor(Tensor tensor) {
  tensor.codebooks += Format::config().part.first_element;
  if constexpr (Format::config().stage_scales) tensor.scales += Format::config().part.first_scale;
  return tensor;
}

// Raw tokens of a cache, and the slots of their rows. `Plan` is of an op on a KV cache.
template <class Plan>
struct RawSlots {
  static constexpr int kMaxRecentTokens = Plan::config().max_recent_tokens;
  static constexpr int kMaxSinks = Plan::config().max_sinks;
  // Tokens that leave the window together; and that get their codes together, a batch or a group.
  static constexpr int kBatch = Plan::config().flush_block;
  static constexpr int kTogether =
      most(kBatch, most(Plan::config().keys.scale_tokens, Plan::config().values.scale_tokens));

  // The raw tokens of a sequence: those below `sinks` and from `recent_tokens` on.
  struct Tokens {
    int sinks, recent_tokens;
    VQ_DEVICE bool holds(int token) const {
      if constexpr (kMaxSinks + kMaxRecentTokens == 0) return false;
      return token < sinks || token >= recent_tokens;
    }
    VQ_DEVICE void end_with_codes(int length) { recent_tokens = codes_end(recent_tokens, length); }
  };
  // End of the tokens that are read from codes: before the window, which whole batches leave, and
  // before the tokens, of `length` in the cache, that have no codes yet.
  VQ_DEVICE static int codes_end(int recent_tokens, int length) {
    if constexpr (kTogether == 1) return recent_tokens;
    const int end = least(recent_tokens, whole(length));
    return kBatch > 1 ? whole(end) : end;
  }
  VQ_DEVICE static int whole(int length) { return length > 0 ? length / kTogether * kTogether : 0; }
  VQ_DEVICE static int least(int a, int b) { return a < b ? a : b; }
  // `Args` have counts of sinks and windows.
  template <class Args>
  VQ_DEVICE static Tokens tokens(const Args& args, int batch, int length) {
    Tokens raw = counted(args, batch, length);
    raw.end_with_codes(length);
    return raw;
  }
  // tokens() by the counts alone.
  template <class Args>
  VQ_DEVICE static Tokens counted(const Args& args, int batch, int length) {
    Tokens raw{0, length};
    if constexpr (kMaxSinks > 0) {
      const int sinks = load_global(args.sinks + batch);
      raw.sinks = sinks > 0 ? least(sinks, kMaxSinks) : 0;
    }
    if constexpr (kMaxRecentTokens > 0)
      raw.recent_tokens = length - load_global(args.recent_counts + batch);
    return raw;
  }

  // The slot of a raw token, the sequence's first `sinks` tokens being sinks; read where there is a
  // window.
  VQ_DEVICE static int slot(int token, const int& sinks) {
    if constexpr (kMaxRecentTokens > 0) {
      if (token >= sinks) return window_slot(token);
    }
    return token;
  }
  VQ_DEVICE static int window_slot(int token) { return kMaxSinks + token % kMaxRecentTokens; }
};

// Raw rows of keys, or of values.
template <class Plan, bool kValues>
struct RawRows : RawSlots<Plan> {
  static constexpr int kDim = row_dim(Plan::config(), kValues);
  // Values whose rows have the size of keys have their strides, too.
  static constexpr bool kOwnStrides = kValues && rows_differ(Plan::config());
  static constexpr int kPageTokens = Plan::config().raw_page_tokens;
  static constexpr bool kPaged = kPageTokens > 0;
  using RawSlots<Plan>::slot;

  template <class Args>
  VQ_DEVICE static i64 batch_stride(const Args& args) {
    return kOwnStrides ? args.raw_value_batch_stride : args.raw_batch_stride;
  }
  template <class Args>
  VQ_DEVICE static i64 head_stride(const Args& args) {
    return kOwnStrides ? args.raw_value_head_stride : args.raw_head_stride;
  }
  template <class Args>
  VQ_DEVICE static i64 token_stride(const Args& args) {
    return kOwnStrides ? args.raw_value_token_stride : args.raw_token_stride;
  }

  // Elements from args.raw_keys or args.raw_values to the row in slot 0, and from there to another.
  template <class Args>
  VQ_DEVICE static i64 first(const Args& args, int batch, int head) {
    return batch * batch_stride(args) + head * head_stride(args);
  }
  VQ_DEVICE static i64 row(int slot) { return i64{slot} * kDim; }
  // Elements from args.raw_keys or args.raw_values to the row of a raw token, in a slot or a page.
  template <class Args>
  VQ_DEVICE static i64 at(const Args& args, int batch, int head, int token, const int& sinks) {
    if constexpr (kPaged) {
      const i32* const table = args.raw_table + batch * args.raw_table_columns;
      return load_global(table + token / kPageTokens) * batch_stride(args) +
             head * head_stride(args) + token % kPageTokens * token_stride(args);
    } else {
      return first(args, batch, head) + row(slot(token, sinks));
    }
  }
};

}  // namespace vq
