// Bins of histogram attention: for each value column and head, the probability that names each
// entry. Probabilities are shares of the sum over all tokens in fixed point, so that sums in any
// order have equal bits and splits need no maximum of their own:
//
//   2^31 exp2(score - maximum) / sum
//
// Sums stay below 2^32 whatever the rounding. A block has a slice of the entries of some columns,
// for some heads, and a split of the tokens.
#pragma once

#include <vq/codes.cuh>
#include <vq/kernels/attention_histogram/columns.cuh>

namespace vq {

template <class Plan>
class BinFill {
 public:
  using Format = BinValues<Plan>;
  using Codes = FourRows<Format, Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = Format::config();
  static constexpr int kThreads = kConfig.bin_threads;
  static constexpr int kPadded = padded_heads(kConfig);
  static constexpr int kSide = bin_heads(kConfig);      // heads whose powers are contiguous
  static constexpr int kHeads = summed_heads(kConfig);  // heads summed at once
  static constexpr int kHeadBlocks = bin_head_blocks(kConfig);
  static constexpr int kColumns = kConfig.columns_per_block;
  static constexpr int kColumnBlocks = column_blocks(kConfig);
  static constexpr int kBlockTokens = tokens_per_block(kConfig);
  static constexpr int kAllColumns = columns_of(kFormat);
  static constexpr int kSlices = kConfig.bin_slices;
  static constexpr int kEntries = slice_entries(kConfig);
  static constexpr BinsShared kAt = bins_shared(kConfig);
  static constexpr int kWords = block_words(kConfig);
  static constexpr int kPowerWords = 2 * kSide;  // words for four tokens
  static constexpr float kWhole = 2147483648.0f;

  VQ_DEVICE explicit BinFill(const AttentionDecodeArgs& args)
      : args_(args),
        workspace_(args),
        kv_head_(block_y() / (kColumnBlocks * kHeadBlocks * kSlices)),
        first_column_(block_y() / (kHeadBlocks * kSlices) % kColumnBlocks * kColumns),
        first_head_(block_y() / kSlices % kHeadBlocks * kSide),
        first_entry_(block_y() % kSlices * kEntries),
        pair_(kv_head_ * args.batch + block_z()),
        length_(length_within(args, block_z())) {}

  VQ_DEVICE void run() const {
    for (int i = thread_index(); i < kColumns * kHeads * kEntries; i += kThreads) {
      store_shared(bins() + i, 0u);
    }
    merge_maxima();
    sync_block();
    Softmax softmax;
    bool any = false;
    VQ_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      softmax.maximum[h] = load_shared(softmax_of_heads() + h);
      softmax.factor[h] = load_shared(softmax_of_heads() + kSide + h);
      any = any || softmax.factor[h] > 0.0f;
    }
    if (any) add_tokens(softmax);
    sync_block();
    write();
  }

 private:
  VQ_DEVICE static u32* bins() { return shared_part<u32>(kAt.bins); }
  VQ_DEVICE static float* softmax_of_heads() { return shared_part<float>(kAt.softmax); }

  // Per head: the largest score, and the factor from power to probability.
  struct Softmax {
    float maximum[kHeads], factor[kHeads];
  };

  // Computes maximum and factor of each head from the score blocks' maxima, one warp per head.
  VQ_DEVICE void merge_maxima() const {
    const int blocks = length_ > 0 ? ceil_div(length_, kBlockTokens) : 0;
    for (int h = warp(); h < kHeads; h += kThreads / 32) {
      const float* const maxima = workspace_.maxima(pair_) + first_head_ + h;
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
      store_shared(softmax_of_heads() + h, highest);
      store_shared(softmax_of_heads() + kSide + h, sum > 0.0f ? kWhole / kPowerScale / sum : 0.0f);
      if (block_x() == 0 && first_column_ == 0 && first_entry_ == 0) {
        store_global(workspace_.total(pair_ * kPadded + first_head_ + h),
                     highest + log2_approx(sum));
      }
    }
  }

  // A turn's loads: powers of four tokens, the maxima of their score block, and the words with
  // their codes.
  struct Turn {
    u32 powers[kPowerWords];
    float maxima[kHeads];
    u32 words[kWords][4];
  };

  VQ_DEVICE void add_tokens(const Softmax& softmax) const {
    const int share = ceil_div(ceil_div(length_, kConfig.splits), 4) * 4;
    const i64 first = i64{share} * block_x();
    const auto begin = static_cast<u32>(first < length_ ? first : i64{length_});
    const auto end = static_cast<u32>(first + share < length_ ? first + share : i64{length_});
    const u16* const powers =
        workspace_.powers(pair_) + first_head_ / kSide * workspace_.head_powers();
    const float* const maxima = workspace_.maxima(pair_) + first_head_;
    const Codes codes(args_.values, block_z(), kv_head_, length_);
    const int first_word = first_column_ * kFormat.index_bits / 32;
    const auto load = [&](Turn& to, u32 token) {
      if (token >= end) return;
      constexpr int kAccess = kPowerWords < 4 ? kPowerWords : 4;
      const auto* const words = wide_step(reinterpret_cast<const u32*>(powers), token, kSide * 2);
      VQ_UNROLL
      for (int w = 0; w < kPowerWords; w += kAccess) {
        load_words<kAccess>(to.powers + w, words + w, LoadGlobal());
      }
      VQ_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        to.maxima[h] = load_global(wide_step(maxima, token / kBlockTokens, 2 * kPadded * 4) + h);
      }
      VQ_UNROLL
      for (int w = 0; w < kWords; ++w) {
        codes.load(to.words[w], static_cast<int>(token), first_word + w);
      }
    };
    // Two turns, so that one is loaded while the other is added.
    constexpr u32 kTurn = kThreads * 4;
    Turn even, odd;
    u32 token = begin + static_cast<u32>(thread_index()) * 4;
    load(even, token);
    for (; token < end; token += 2 * kTurn) {
      load(odd, token + kTurn);
      add_turn(even, softmax);
      load(even, token + 2 * kTurn);
      if (token + kTurn < end) add_turn(odd, softmax);
    }
  }

  VQ_DEVICE void add_turn(const Turn& turn, const Softmax& softmax) const {
    u32 shares[4][kHeads];
    VQ_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const float weight = exp2_approx(turn.maxima[h] - softmax.maximum[h]);
      const float factor = larger(softmax.factor[h] * weight, 0.0f);  // NaN of no token: 0
      VQ_UNROLL
      for (int t = 0; t < 4; ++t) {
        const int k = t * kSide + h;
        const float power =
            to_float<Element::f16>(static_cast<u16>(turn.powers[k / 2] >> k % 2 * 16));
        shares[t][h] = static_cast<u32>(fused(power, factor, 0.5f));
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
        const u32 code = code_in<kFormat.index_bits>(words, c);
        const u32 place = code & (kEntries - 1u);
        const bool here = (code & ~(kEntries - 1u)) == static_cast<u32>(first_entry_);
        // With two slices, adding nothing to the other slice's bin is cheaper than a branch.
        if (kSlices > 2 && !here) continue;
        VQ_UNROLL
        for (int h = 0; h < kHeads; ++h) {
          add_shared(bins() + (c * kHeads + h) * kEntries + static_cast<int>(place),
                     kSlices == 1 || here ? shares[t][h] : 0u);
        }
      }
    }
  }

  // Writes bins as elements, two entries at a time. Rows of padding heads may keep garbage: nothing
  // reads them.
  VQ_DEVICE void write() const {
    constexpr float kUnit = kBinScale / kWhole;
    constexpr int kPairs = kEntries / 2;
    const int rows = static_cast<int>(workspace_.sizes().rows(args_.batch));
    u16* const to =
        workspace_.bins(block_x(), first_column_, pair_ * kPadded + first_head_) + first_entry_;
    for (int i = thread_index(); i < kColumns * kHeads * kPairs; i += kThreads) {
      const int c = i / (kHeads * kPairs);
      const int h = i / kPairs % kHeads;
      if (first_column_ + c >= kAllColumns) continue;
      const u32* const from = bins() + (c * kHeads + h) * kEntries + i % kPairs * 2;
      const float low = static_cast<float>(load_shared(from)) * kUnit;
      const float high = static_cast<float>(load_shared(from + 1)) * kUnit;
      u16* const row = to + (i64{c} * rows + h) * (kEntries * kSlices);
      store_global(reinterpret_cast<u32*>(row) + i % kPairs, pack2<kConfig.element>(low, high));
    }
  }

  const AttentionDecodeArgs& args_;
  const BinsWorkspace<Plan> workspace_;
  int kv_head_, first_column_, first_head_, first_entry_, pair_, length_;
};

template <class Plan>
VQ_DEVICE void attention_histogram_fill(const AttentionDecodeArgs& args) {
  BinFill<Plan>(args).run();
}

}  // namespace vq
