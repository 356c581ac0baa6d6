// The bins of attention by bins: for each value column and head, how much probability names each
// entry. Probabilities are shares of the sum over all tokens, in fixed point, so that sums of any
// order are the same bits and splits need no maximum of their own:
//
//   2^31 exp2(score - maximum) / sum
//
// Sums stay below 2^32 whatever the rounding. A block has a slice of the entries of some columns
// and a split of the tokens.
#pragma once

#include <vq/codes.cuh>
#include <vq/ops/bin_columns.cuh>

namespace vq {

template <class Plan>
class BinFill {
 public:
  using Format = BinValues<Plan>;
  using Codes = FourRows<Format, Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = Format::config();
  static constexpr int kThreads = kConfig.threads;
  static constexpr int kPadded = padded_heads(kConfig);
  static constexpr int kHeads = group(kConfig);
  static constexpr int kColumns = kConfig.columns_per_block;
  static constexpr int kColumnBlocks = column_blocks(kConfig);
  static constexpr int kBlockTokens = tokens_per_block(kConfig);
  static constexpr int kAllColumns = columns_of(kFormat);
  static constexpr int kSlices = kConfig.bin_slices;
  static constexpr int kEntries = slice_entries(kConfig);
  static constexpr BinsShared kAt = bins_shared(kConfig);
  static constexpr int kWords = block_words(kConfig);
  static constexpr float kWhole = 2147483648.0f;

  VQ_DEVICE explicit BinFill(const AttentionDecodeArgs& args)
      : args_(args),
        workspace_(args),
        kv_head_(block_y() / (kColumnBlocks * kSlices)),
        first_column_(block_y() / kSlices % kColumnBlocks * kColumns),
        first_entry_(block_y() % kSlices * kEntries),
        pair_(kv_head_ * args.batch + block_z()),
        length_(load_global(args.lengths + block_z())) {}

  VQ_DEVICE void run() const {
    for (int i = thread_index(); i < kColumns * kHeads * kEntries; i += kThreads) {
      store_shared(bins() + i, 0u);
    }
    merge_maxima();
    sync_block();
    float maximum[kPadded], factor[kPadded];
    bool any = false;
    VQ_UNROLL
    for (int h = 0; h < kPadded; ++h) {
      maximum[h] = load_shared(softmax() + h);
      factor[h] = load_shared(softmax() + kPadded + h);
      any = any || factor[h] > 0.0f;
    }
    if (any) add_tokens(maximum, factor);
    sync_block();
    write();
  }

 private:
  VQ_DEVICE static u32* bins() { return shared_part<u32>(kAt.bins); }
  VQ_DEVICE static float* softmax() { return shared_part<float>(kAt.softmax); }

  // Maximum and factor of each head, a warp each, from those of the blocks of scores.
  VQ_DEVICE void merge_maxima() const {
    const int blocks = length_ > 0 ? ceil_div(length_, kBlockTokens) : 0;
    for (int h = warp(); h < kPadded; h += kThreads / 32) {
      const float* const maxima = workspace_.maxima(pair_) + h;
      float highest = -infinity();
      for (int block = lane(); block < blocks; block += 32) {
        highest = larger(highest, load_global(maxima + block * 2 * kPadded));
      }
      VQ_UNROLL
      for (int mask = 16; mask > 0; mask /= 2) {
        highest = larger(highest, shuffle_xor(highest, mask));
      }
      float sum = 0.0f;
      for (int block = lane(); block < blocks; block += 32) {
        const float* const from = maxima + block * 2 * kPadded;
        const float part = load_global(from + kPadded);
        if (part != 0.0f) sum += part * exp2_approx(load_global(from) - highest);
      }
      VQ_UNROLL
      for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
      if (lane() != 0) continue;
      store_shared(softmax() + h, highest);
      store_shared(softmax() + kPadded + h, sum > 0.0f ? kWhole / sum : 0.0f);
      if (block_x() == 0 && first_column_ == 0 && first_entry_ == 0) {
        store_global(workspace_.total(pair_ * kPadded + h), highest + log2_approx(sum));
      }
    }
  }

  // What a turn takes from memory: scores of four tokens, and the words with their codes.
  struct Turn {
    U32x4 scores[kPadded];
    u32 words[kWords][4];
  };

  VQ_DEVICE void add_tokens(const float (&maximum)[kPadded], const float (&factor)[kPadded]) const {
    const int share = ceil_div(ceil_div(length_, kConfig.splits), 4) * 4;
    const i64 begin = i64{share} * block_x();
    const int end = begin + share < length_ ? static_cast<int>(begin) + share : length_;
    const float* const scores = workspace_.scores(pair_);
    const Codes codes(args_.values, block_z(), kv_head_, length_);
    const int first_word = first_column_ * kFormat.index_bits / 32;
    const auto load = [&](Turn& to, i64 token) {
      if (token >= end) return;
      VQ_UNROLL
      for (int j = 0; j < kPadded; ++j) {
        to.scores[j] = load_global(reinterpret_cast<const U32x4*>(scores + token * kPadded) + j);
      }
      VQ_UNROLL
      for (int w = 0; w < kWords; ++w) {
        codes.load(to.words[w], static_cast<int>(token), first_word + w);
      }
    };
    // Two turns, so that one is loaded while the other is added.
    constexpr int kTurn = kThreads * 4;
    Turn even, odd;
    i64 token = begin + thread_index() * 4;
    load(even, token);
    for (; token < end; token += 2 * kTurn) {
      load(odd, token + kTurn);
      add_turn(even, maximum, factor);
      load(even, token + 2 * kTurn);
      if (token + kTurn < end) add_turn(odd, maximum, factor);
    }
  }

  VQ_DEVICE void add_turn(const Turn& turn, const float (&maximum)[kPadded],
                          const float (&factor)[kPadded]) const {
    u32 shares[4][kPadded];
    VQ_UNROLL
    for (int j = 0; j < kPadded; ++j) {
      VQ_UNROLL
      for (int k = 0; k < 4; ++k) {
        const int h = (4 * j + k) % kPadded;
        const float score = float_from_bits(word_of(turn.scores[j], k));
        const float power = exp2_approx(score - maximum[h]);
        // Of a score that is NaN 0: its head's total says so.
        shares[(4 * j + k) / kPadded][h] = static_cast<u32>(larger(power * factor[h], 0.0f) + 0.5f);
      }
    }
    VQ_UNROLL
    for (int t = 0; t < 4; ++t) {
      u32 words[kWords];  // the block's codes from the first bit on
      VQ_UNROLL
      for (int w = 0; w < kWords; ++w) {
        const u32 next = w + 1 < kWords ? turn.words[w + 1][t] : 0u;
        words[w] = word_across(turn.words[w][t], next, first_column_ * kFormat.index_bits % 32);
      }
      VQ_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        if (kAllColumns % kColumns != 0 && first_column_ + c >= kAllColumns) continue;
        const u32 place = code_in<kFormat.index_bits>(words, c) - static_cast<u32>(first_entry_);
        if (kSlices > 1 && place >= static_cast<u32>(kEntries)) continue;
        VQ_UNROLL
        for (int h = 0; h < kHeads; ++h) {
          add_shared(bins() + (c * kHeads + h) * kEntries + place, shares[t][h]);
        }
      }
    }
  }

  // As elements, two entries at a time; zeros of the heads that pad a group.
  VQ_DEVICE void write() const {
    constexpr float kUnit = kBinScale / kWhole;
    constexpr int kPairs = kEntries / 2;
    const int rows = static_cast<int>(workspace_.sizes().rows(args_.batch));
    u16* const to = workspace_.bins(block_x(), first_column_, pair_ * kPadded) + first_entry_;
    for (int i = thread_index(); i < kColumns * kPadded * kPairs; i += kThreads) {
      const int c = i / (kPadded * kPairs);
      const int h = i / kPairs % kPadded;
      if (first_column_ + c >= kAllColumns) continue;
      const u32* const from = bins() + (c * kHeads + h) * kEntries + i % kPairs * 2;
      const bool real = h < kHeads;
      const float low = real ? static_cast<float>(load_shared(from)) * kUnit : 0.0f;
      const float high = real ? static_cast<float>(load_shared(from + 1)) * kUnit : 0.0f;
      u16* const row = to + (i64{c} * rows + h) * (kEntries * kSlices);
      store_global(reinterpret_cast<u32*>(row) + i % kPairs, pack2<kConfig.element>(low, high));
    }
  }

  const AttentionDecodeArgs& args_;
  const BinsWorkspace<Plan> workspace_;
  int kv_head_, first_column_, first_entry_, pair_, length_;
};

template <class Plan>
VQ_DEVICE void attention_bins_fill(const AttentionDecodeArgs& args) {
  BinFill<Plan>(args).run();
}

}  // namespace vq
