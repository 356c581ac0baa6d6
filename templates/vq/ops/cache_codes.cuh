// The codes that a lane of attention by fragments reads, a step of kTokens tokens at a time: of
// keys those of token g of each tile, of values those of tokens 2c and 2c + 1. Where their layout
// has groups of tokens, a lane's tokens of some tiles follow each other (joined_tiles), so that one
// access brings words of several.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/ops/fragment_rows.cuh>
#include <vq/ops/warp_softmax.cuh>

namespace vq {

template <class Plan, class KeyRows, class ValueRows>
class CacheCodes {
 public:
  using Work = AttentionWork<Plan>;
  using Softmax = WarpSoftmax<Plan>;
  static constexpr AttentionDecodeConfig kConfig = Plan::config();
  static constexpr int kTokens = kConfig.tile_tokens;
  static constexpr int kTiles = Softmax::kTiles;
  // Tokens whose codes one access brings, and those of the larger group, with which steps begin.
  static constexpr int kJoined = joined_tiles(kConfig);
  static constexpr int kKeysAtOnce =
      kJoined % keys_together(kConfig) == 0 ? keys_together(kConfig) : 1;
  static constexpr int kValuesAtOnce =
      2 * kJoined % values_together(kConfig) == 0 ? values_together(kConfig) : 1;
  static constexpr CodeLayout kKeyLayout = kConfig.keys.layout;
  static constexpr CodeLayout kValueLayout = kConfig.values.layout;
  static constexpr int kGroup =
      kKeyLayout.rows > kValueLayout.rows ? kKeyLayout.rows : kValueLayout.rows;

  // The codes of one step, in flight.
  struct Step {
    u32 keys[kTiles][KeyRows::Share::kLoaded];
    u32 values[kTiles][2][ValueRows::Share::kLoaded];
  };

  // This warp's first step begins with a group, maybe before tokens that count.
  VQ_DEVICE static int first_step(int begin) { return begin - begin % kGroup + warp() * kTokens; }
  // The rows that a step reads begin here: the last step of a sequence moves back to where kTokens
  // rows exist, of whole groups, and tokens before `first` do not count.
  VQ_DEVICE static int base_of(int first, int end) {
    const int last = round_up(end, kGroup) - kTokens;
    return first <= last ? first : last > 0 ? last : 0;
  }

  // The sequence's rows, and words from a step's first row to those that this lane loads. Where a
  // sequence has fewer than kTokens rows, those past its last repeat it.
  VQ_DEVICE void point_at_rows(const AttentionDecodeArgs& args, const Work& work, int end) {
    const auto rows = [&work](const QuantizedArgs& tensor) {
      return tensor.codes + work.batch * tensor.batch_stride + work.kv_head * tensor.head_stride;
    };
    keys_ = rows(args.keys);
    values_ = rows(args.values);
    const int last_key = (end - 1) / kKeysAtOnce * kKeysAtOnce;
    const int last_value = (end - 1) / kValuesAtOnce * kValuesAtOnce;
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int key = Softmax::token_of(0, tile, lane() / 4);
      key_words_[tile] = key_place(key < last_key ? key : last_key);
      VQ_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int value = Softmax::token_of(0, tile, lane() % 4 * 2 + i);
        value_words_[tile][i] = value_place(value < last_value ? value : last_value);
      }
    }
    last_key_words_ = key_place(last_key);
    last_value_words_ = value_place(last_value);
  }

  VQ_DEVICE void load(Step& to, int first, int end) const {
    const int base = base_of(first, end);
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; tile += kJoined) {
      VQ_UNROLL
      for (int i = 0; i < kJoined; i += kKeysAtOnce) {
        const u32 key = held<kKeyLayout.rows>(base * KeyRows::kStoredWords + key_words_[tile + i],
                                              last_key_words_);
        KeyRows::Share::template load<kKeysAtOnce>(
            keys_ + key, lane() % 4, [&](int row) -> u32* { return to.keys[tile + i + row]; });
      }
      VQ_UNROLL
      for (int i = 0; i < 2 * kJoined; i += kValuesAtOnce) {
        const int at = value_words_[tile + i % kJoined][i / kJoined];
        const u32 value =
            held<kValueLayout.rows>(base * ValueRows::kStoredWords + at, last_value_words_);
        ValueRows::Share::template load<kValuesAtOnce>(
            values_ + value, lane() / 4, [&](int row) -> u32* {
              return to.values[tile + (i + row) % kJoined][(i + row) / kJoined];
            });
      }
    }
  }

 private:
  // Words from a row that begins a group to what this lane reads of the `row`-th row from there.
  VQ_DEVICE static int key_place(int row) {
    return row_place(kKeyLayout, KeyRows::kStoredWords, row) +
           word_place(kKeyLayout, KeyRows::Share::first_word(lane() % 4));
  }
  VQ_DEVICE static int value_place(int row) {
    return row_place(kValueLayout, ValueRows::kStoredWords, row) +
           word_place(kValueLayout, ValueRows::Share::first_word(lane() / 4));
  }
  // A tensor whose groups are smaller than those that steps begin with may lack the last rows of a
  // step, which do not count: then its last one again.
  template <int kRows>
  VQ_DEVICE static u32 held(int words, int last) {
    if constexpr (kRows == kGroup) return static_cast<u32>(words);
    return static_cast<u32>(words < last ? words : last);
  }

  const u32* keys_;
  const u32* values_;
  int key_words_[kTiles];
  int value_words_[kTiles][2];
  int last_key_words_;  // from the sequence's first row, of its last
  int last_value_words_;
};

}  // namespace vq
