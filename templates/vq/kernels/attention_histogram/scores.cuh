// Scores of histogram attention: columns outside, tokens inside. A thread sums the scores of groups
// of four consecutive tokens in registers. A column's table is in shared memory, and the next table
// and code words load meanwhile; or tables stay in global memory and lookups go to L2.
#pragma once

#include <vq/codes.cuh>
#include <vq/kernels/attention_histogram/columns.cuh>

namespace vq {

template <class Plan>
class BinScores {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kThreads = kConfig.threads;
  static constexpr int kPadded = padded_heads(kConfig);
  static constexpr int kFours = kConfig.tokens_per_thread / 4;
  static constexpr int kTokens = tokens_per_block(kConfig);
  template <int kPart>
  static constexpr int kTables = tables_in_flight(kConfig, key_format(kConfig, kPart));
  static constexpr i64 kTableBytes = most_table_bytes(kConfig);
  static constexpr ScoresShared kAt = scores_shared(kConfig);
  using Entry = EntryWords<kPadded>;
  using Raw = RawSlots<Plan>;

  VQ_DEVICE explicit BinScores(const AttentionDecodeArgs& args)
      : args_(args),
        kv_head_(block_y()),
        pair_(block_y() * args.batch + block_z()),
        length_(length_within(args, block_z())) {
    const BinsWorkspace<Plan> workspace(args);
    tables_ = workspace.tables(pair_);
    powers_ = workspace.powers(pair_);
    head_powers_ = workspace.head_powers();
    maxima_ = workspace.maxima(pair_) + block_x() * 2 * kPadded;
  }

  VQ_DEVICE void run() {
    if (first_token() >= length_) return;
    if constexpr (kTables<0> == 2) begin_table<0>(0, 0);
    add_part<0>(0);
    finish();
  }

 private:
  VQ_DEVICE static int first_token() { return block_x() * kTokens; }
  // First of a thread's tokens number 4 i .. 4 i + 3.
  VQ_DEVICE static int four(int i) { return first_token() + (i * kThreads + thread_index()) * 4; }

  // This thread's buffer for the next code words of these tokens.
  VQ_DEVICE static u32* next_words(int i) {
    return shared_part<u32>(kAt.words) + (i * kThreads + thread_index()) * 4;
  }

  // Copies the table of a part's column, or of the next part's first one where two of its tables
  // are in flight, to a buffer.
  template <int kPart>
  VQ_DEVICE void begin_table(int column, int buffer) const {
    constexpr FormatConfig kFormat = key_format(kConfig, kPart);
    constexpr int kColumns = columns_of(kFormat);
    if constexpr (next_is_double<kPart>()) {
      if (column == kColumns) return begin_table<kPart + 1>(0, buffer);
    }
    if (column < kColumns) {
      constexpr int kWords = static_cast<int>(table_bytes(kConfig, kFormat) / 16);
      const auto* const from =
          reinterpret_cast<const U32x4*>(tables_ + column_table<Plan, kPart>(column));
      auto* const to = shared_part<U32x4>(kAt.tables + buffer * kTableBytes);
      // A few loads are unrolled: no lookups are in flight meanwhile.
      constexpr int kTurns = ceil_div(kWords, kThreads) < 8 ? ceil_div(kWords, kThreads) : 8;
      for (int first = 0; first < kWords; first += kTurns * kThreads) {
        VQ_UNROLL
        for (int turn = 0; turn < kTurns; ++turn) {
          const int i = first + turn * kThreads + thread_index();
          if (kWords % (kTurns * kThreads) == 0 || i < kWords) copy_async(to + i, from + i);
        }
      }
    }
    copy_async_commit();
  }

  // The first table of a part behind one that has none in shared memory.
  template <int kPart>
  VQ_DEVICE void begin_first() const {
    sync_block();  // a part before that may have read the buffer
    begin_table<kPart>(0, 0);
  }

  template <int kPart>
  VQ_DEVICE static constexpr bool next_is_double() {
    if constexpr (kPart + 1 < key_formats(kConfig)) return kTables<kPart + 1> == 2;
    return false;
  }

  // A column whose codes begin at bit `bit` and whose table, maybe in a buffer, is `table`.
  template <int kPart>
  struct Lookup {
    int bit;
    bool crosses;
    int buffer;
    const Entry* table;

    // Calls use(token of the four, code, its numbers) for the thread's tokens number 4 i .. 4 i
    // + 3.
    template <class Use>
    VQ_DEVICE void of_four(const u32 (&words)[4], int i, Use use) const {
      constexpr u32 kMask = static_cast<u32>(entries(key_format(kConfig, kPart)) - 1);
      u32 next[4] = {};
      if (crosses) load_words<4>(next, next_words(i), LoadShared());
      VQ_UNROLL
      for (int t = 0; t < 4; ++t) {
        const u32 code = word_across(words[t], next[t], bit % 32) & kMask;
        if constexpr (kTables<kPart> != 0) {
          use(t, code, load_shared(shared_part<Entry>(kAt.tables + buffer * kTableBytes) + code));
        } else {
          use(t, code, load_global(wide_step(table, code, sizeof(Entry))));
        }
      }
    }
  };

  // Adds the columns of part kPart and of those after it; the first table is in buffer `first`, or
  // in flight to it.
  template <int kPart>
  VQ_DEVICE void add_part(int first) {
    using Format = BinKeys<Plan, kPart>;
    using Codes = FourRows<Format, Plan>;
    constexpr FormatConfig kFormat = Format::config();
    constexpr int kColumns = columns_of(kFormat);
    const Codes codes(args_.keys, block_z(), kv_head_, length_);
    u32 words[kFours][4];
    VQ_UNROLL
    for (int i = 0; i < kFours; ++i) {
      codes.load(words[i], four(i), 0);
      codes.copy(next_words(i), four(i), 1);
    }
    copy_async_commit();
    for (int column = 0; column < kColumns; ++column) {
      const int bit = column * kFormat.index_bits;
      copy_async_wait<0>();
      if (bit % 32 < kFormat.index_bits && column > 0) {  // the first code that begins in a word
        // None behind the last: the next part's first may not be on its way to the same place as
        // well.
        const bool more = bit / 32 + 1 < Codes::kWords;
        VQ_UNROLL
        for (int i = 0; i < kFours; ++i) {
          load_words<4>(words[i], next_words(i), LoadShared());
          if (more) codes.copy(next_words(i), four(i), bit / 32 + 1);
        }
      }
      const int buffer = kTables<kPart> == 2 ? (first + column) % 2 : 0;
      get_table<kPart>(column, buffer);
      const auto* const global =
          reinterpret_cast<const Entry*>(tables_ + column_table<Plan, kPart>(column));
      // A code that ends in the next word never begins where the word has just been replaced.
      const bool crosses = bit % 32 + kFormat.index_bits > 32;
      const Lookup<kPart> lookup{bit, crosses, buffer, global};
      u32 of_fours[kFours], least = ~0u;  // the least word
      VQ_UNROLL
      for (int i = 0; i < kFours; ++i) {
        of_fours[i] = ~0u;
        lookup.of_four(words[i], i,
                       [&](int t, u32, Entry entry) { add(sums_[i][t], entry, of_fours[i]); });
        least = lower(least, of_fours[i]);
      }
      if (least == 0) {
        const i32* const large = large_of(global);
        VQ_UNROLL
        for (int i = 0; i < kFours; ++i) {
          if (of_fours[i] == 0) add_large(lookup, words[i], i, large);
        }
      }
    }
    if constexpr (kPart + 1 < key_formats(kConfig)) {
      if constexpr (kTables<kPart> == 2) {
        add_part<kPart + 1>((first + kColumns) % 2);
      } else {
        if constexpr (kTables<kPart + 1> == 2) begin_first<kPart + 1>();
        add_part<kPart + 1>(0);
      }
    }
  }

  // On return a column's table is in its buffer.
  template <int kPart>
  VQ_DEVICE void get_table(int column, int buffer) const {
    if constexpr (kTables<kPart> == 0) {
      copy_async_commit();
      return;
    }
    sync_block();  // the table that is replaced has been read; of two, the other has arrived
    constexpr bool kDouble = kTables<kPart> == 2;
    begin_table<kPart>(kDouble ? column + 1 : column, kDouble ? buffer ^ 1 : 0);
    if constexpr (!kDouble) {
      copy_async_wait<0>();
      sync_block();
    }
  }

  // For a pair of heads, the first sum adds whole words and the second their high halves; the first
  // sum less the second << 16 is the sum of low halves. Sums wrap.
  VQ_DEVICE static void add(u32 (&sums)[kPadded], Entry entry, u32& least) {
    if constexpr (kPadded == 1) {
      sums[0] += entry;
      least = lower(least, entry);
    } else {
      VQ_UNROLL
      for (int h = 0; h < kPadded; h += 2) {
        const u32 two = word_of(entry, h / 2);
        sums[h] += two;
        sums[h + 1] += two >> 16;
        least = lower(least, two);
      }
    }
  }
  VQ_DEVICE static u32 lower(u32 a, u32 b) { return a < b ? a : b; }

  // Adds the overflow values of four tokens whose table entry is 0.
  template <int kPart>
  VQ_DEVICE void add_large(const Lookup<kPart>& lookup, const u32 (&words)[4], int i,
                           const i32* large) {
    using Numbers = Either<kPadded == 1, u32, U32x2>;
    constexpr int kSide = sizeof(Numbers) / 4;
    Numbers numbers[4][kPadded / kSide];
    lookup.of_four(words, i, [&](int t, u32 code, Entry entry) {
      const auto* const of_code = reinterpret_cast<const Numbers*>(large + code * kPadded);
      VQ_UNROLL
      for (int p = 0; p < kPadded / kSide; ++p) {
        numbers[t][p] = word_of(entry, p) == 0 ? load_global(of_code + p) : Numbers{};
      }
    });
    VQ_UNROLL
    for (int t = 0; t < 4; ++t) {
      VQ_UNROLL
      for (int h = 0; h < kPadded; ++h) {
        const u32 number = word_of(numbers[t][h / kSide], h % kSide);
        if (number == static_cast<u32>(kNoScore) && counts(raw(), four(i) + t)) {
          without_score_ |= 1u << h;
        }
        sums_[i][t][h] += number;
        if (h % 2 != 0) sums_[i][t][h - 1] += number << 16;
      }
    }
  }
  VQ_DEVICE const i32* large_of(const Entry* table) const {
    return BinsWorkspace<Plan>(args_).large(reinterpret_cast<const u16*>(table));
  }

  VQ_DEVICE typename Raw::Tokens raw() const { return Raw::tokens(args_, block_z(), length_); }
  VQ_DEVICE bool counts(const typename Raw::Tokens& raw, int token) const {
    return token < length_ && !raw.holds(token);
  }

  // Stores the powers of the scores, the scores' maximum and the sum of the powers.
  VQ_DEVICE void finish() {
    constexpr float kUnit = 1.0f / (1 << score_bits(kConfig));
    constexpr u32 kBias = static_cast<u32>(kScoreBias) * key_columns(kConfig);
    const auto raw_tokens = raw();
    float scores[kFours][4][kPadded];
    float highest[kPadded];
    VQ_UNROLL
    for (int h = 0; h < kPadded; ++h) highest[h] = -infinity();
    VQ_UNROLL
    for (int i = 0; i < kFours; ++i) {
      VQ_UNROLL
      for (int t = 0; t < 4; ++t) {
        const bool token_counts = counts(raw_tokens, four(i) + t);
        VQ_UNROLL
        for (int h = 0; h < kPadded; ++h) {
          u32 sum = sums_[i][t][h];
          if (kPadded > 1 && h % 2 == 0) sum -= sums_[i][t][h + 1] << 16;
          float& score = scores[i][t][h];
          score = token_counts ? static_cast<float>(static_cast<i32>(sum - kBias)) * kUnit
                               : -infinity();
          highest[h] = larger(highest[h], score);
        }
      }
    }
    of_block(highest, [](float a, float b) { return larger(a, b); });
    float sum[kPadded];
    VQ_UNROLL
    for (int h = 0; h < kPadded; ++h) {
      sum[h] = (without_score_ >> h & 1) != 0 ? float_from_bits(0x7fc00000u) : 0.0f;
    }
    VQ_UNROLL
    for (int i = 0; i < kFours; ++i) {
      VQ_UNROLL
      for (int t = 0; t < 4; ++t) {
        VQ_UNROLL
        for (int h = 0; h < kPadded; ++h) {
          float& score = scores[i][t][h];
          score = score == -infinity() ? 0.0f : exp2_approx(score - highest[h]);
          sum[h] += score;
        }
      }
      if (four(i) < args_.capacity) store(i, scores[i]);
    }
    sync_block();  // the maxima of the warps have been read
    of_block(sum, [](float a, float b) { return a + b; });
    if (thread_index() == 0) {
      VQ_UNROLL
      for (int h = 0; h < kPadded; ++h) {
        store_global(maxima_ + h, highest[h]);
        store_global(maxima_ + kPadded + h, sum[h]);
      }
    }
  }

  // The powers of four tokens, for each block of heads side by side.
  VQ_DEVICE void store(int i, const float (&of_tokens)[4][kPadded]) const {
    constexpr int kHeads = bin_heads(kConfig);
    constexpr int kWords = 2 * kHeads;
    VQ_UNROLL
    for (int first = 0; first < kPadded; first += kHeads) {
      u32 words[kWords];
      VQ_UNROLL
      for (int w = 0; w < kWords; ++w) {
        const auto power = [&](int k) {
          return of_tokens[k / kHeads][first + k % kHeads] * kPowerScale;
        };
        words[w] = pack2<Element::f16>(power(2 * w), power(2 * w + 1));
      }
      u16* const to = powers_ + first / kHeads * head_powers_ + i64{four(i)} * kHeads;
      if constexpr (kHeads == 1) {
        store_global(reinterpret_cast<U32x2*>(to), U32x2{words[0], words[1]});
      } else {
        VQ_UNROLL
        for (int w = 0; w < kWords; w += 4) {
          store_global(reinterpret_cast<U32x4*>(to) + w / 4,
                       U32x4{words[w], words[w + 1], words[w + 2], words[w + 3]});
        }
      }
    }
  }

  // Values of all threads become one, the same in each.
  template <class Join>
  VQ_DEVICE static void of_block(float (&values)[kPadded], Join join) {
    float* const running = shared_part<float>(kAt.running);
    VQ_UNROLL
    for (int h = 0; h < kPadded; ++h) {
      VQ_UNROLL
      for (int mask = 16; mask > 0; mask /= 2) {
        values[h] = join(values[h], shuffle_xor(values[h], mask));
      }
      if (lane() == 0) store_shared(running + warp() * kPadded + h, values[h]);
    }
    sync_block();
    VQ_UNROLL
    for (int h = 0; h < kPadded; ++h) {
      values[h] = load_shared(running + h);
      for (int w = 1; w < kThreads / 32; ++w) {
        values[h] = join(values[h], load_shared(running + w * kPadded + h));
      }
    }
  }

  const AttentionDecodeArgs& args_;
  int kv_head_, pair_, length_;
  const u16* tables_;  // tables of the pair
  u16* powers_;
  i64 head_powers_;
  float* maxima_;          // maxima of the block
  u32 without_score_ = 0;  // bit h: a token that counts has none of head h
  u32 sums_[kFours][4][kPadded] = {};
};

template <class Plan>
VQ_DEVICE void attention_histogram_scores(const AttentionDecodeArgs& args) {
  BinScores<Plan>(args).run();
}

}  // namespace vq
