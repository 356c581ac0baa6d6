// attention_decode in integers: int8 entries of keys and values are multiplied as they come from
// their lookup by a query and probabilities of two bytes each, with exact sums.
//
//   codes    go through a pipeline of rounds, a step per warp (code_rounds.cuh)
//   entries  have a copy in each bank of shared memory (entry_pairs.cuh)
//   scores   lane (g, c) looks up channels [c head_dim / 4, ..) of token g of a tile, which are
//            operand a of products with the query's bytes (query_bytes.cuh)
//   values   lane (g, c) looks up channels [g head_dim / 8, ..) of rows 2c and 2c + 1, which become
//            operand a by permutes (byte_softmax.cuh)
//   raw      full-precision tokens come after a warp's codes (raw_tiles.cuh)
//
// The values of a step and the scores of the next are interleaved, so that a warp has two
// independent instruction streams. Warps have their own maximum, sum and output and share no
// barrier before the end.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_int8_mma/plan.h>
#include <vq/kernels/attention_int8_mma/byte_softmax.cuh>
#include <vq/kernels/attention_int8_mma/code_rounds.cuh>
#include <vq/kernels/attention_int8_mma/entry_pairs.cuh>
#include <vq/ops/attention_query.cuh>
#include <vq/ops/query_bytes.cuh>

namespace vq {

template <class Plan>
class AttentionInt8MmaBlock {
 public:
  using Work = AttentionWork<Plan>;
  using Softmax = ByteSoftmax<Plan>;
  using Entries = EntryPairs<Plan>;
  using Rounds = CodeRounds<Plan>;
  using Query = QueryBytes<Plan, InOrder>;
  static constexpr auto kConfig = Plan::config();
  static constexpr AttentionInt8MmaShared kAt = bytes_layout(kConfig);
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kTiles = Softmax::kTiles;
  static constexpr int kQuads = Softmax::kQuads;
  // Octets of a key, and sub-vectors of a value, per lane.
  static constexpr int kTurns = kConfig.head_dim / 32;
  static constexpr bool kRaw = reads_raw(kConfig);
  static_assert(kHasMmaS8, "attention_int8_mma needs sm_80");

  VQ_DEVICE explicit AttentionInt8MmaBlock(const AttentionDecodeArgs& args)
      : args_(args), work_(Work::place_of_block()) {}

  // The last warp issues the first round as soon as the previous launch has ended; the other warps
  // (or the same, if it is alone) have placed entries by then.
  VQ_DEVICE void run() {
    constexpr int kFilling = kWarps > 1 ? kConfig.threads - 32 : 32;
    const bool asks = thread_index() >= kConfig.threads - 32;  // the warp
    if (thread_index() < kFilling) {
      Entries::template load<kFilling>(args_.keys, args_.values, work_.kv_head);
    }
    if constexpr (!Rounds::kPaged) Rounds::prefetch(args_, work_);
    after_last_launch();
    if (!work_.read_lengths(args_)) return;
    rounds_.point_at(args_, work_);
    const QueryRows<Plan> rows(args_, work_);
    if (asks) rounds_.ask_for_first();
    const auto pages = rounds_.load_first_pages();
    const bool few = rounds_.others_are_few();
    if (few) rounds_.ask_for_others(pages);
    if constexpr (kRaw) {
      softmax_.skip_below(work_.raw.sinks);
      if (thread_index() == 0) RawTiles<Plan>::keep(RawTiles<Plan>::tokens_of(work_));
    }
    make_query(rows);
    if constexpr (kRaw) RawTiles<Plan>::prefetch(args_, RawTiles<Plan>::tokens_of(work_));
    sync_block();
    if (!few) rounds_.ask_for_others(pages);
    take_query();
    if (asks) Rounds::await_first();
    sync_block();
    attend();
    typename Softmax::Raw raw;
    if constexpr (kRaw) attend_raw(raw);
    const float scale =
        scale_of<kConfig.values.stage_scales, kConfig.values.per_head>(args_.values);
    const float left = kRaw ? 1.0f : scale;
    softmax_.merge(raw, scale,
                   [this, left](int head, int channel, float value, float highest, float total) {
                     if (head < work_.heads)
                       work_.write_one(args_, head, channel, value * left, highest, total);
                   });
    work_.merge_if_last(args_);
  }

 private:
  using Products = i32[kTiles / 2][kQuads][4];
  static constexpr int kKeyWords = ceil_div(kConfig.head_dim / 16, 4);  // words of codes per lane
  struct Codes {
    u32 keys[kTiles][kKeyWords];
    u32 values[2 * kTiles];  // codes of rows 2c and 2c + 1 of each tile
  };
  // MMA operands of two turns.
  struct LookedUp {
    u32 keys[2][kTiles][2];
    u32 values[2][2 * kTiles];
  };

  VQ_DEVICE static float* peaks() { return shared_part<float>(kAt.query_peaks); }
  VQ_DEVICE static u32* query_words() { return shared_part<u32>(kAt.query_words); }

  // The scale of the single stage of the block's codebook.
  template <bool kScales, bool kPerHead>
  VQ_DEVICE float scale_of(const QuantizedArgs& tensor) const {
    if constexpr (!kScales) return 1.0f;
    return load_constant(tensor.scales + (kPerHead ? work_.kv_head : 0));
  }

  // Makes the query's operand words, one warp per head.
  VQ_DEVICE void make_query(const QueryRows<Plan>& rows) const {
    const float scale = scale_of<kConfig.keys.stage_scales, kConfig.keys.per_head>(args_.keys);
    float* const query = shared_part<float>(kAt.query);
    using Row = typename QueryRows<Plan>::Row;
    float peak[QueryRows<Plan>::kOfWarp];
    float* const raw_query = shared_part<float>(kAt.raw_query);
    rows.store(1.0f, query, raw_query, [&](int i, int head, const Row& row) {
      peak[i] = peak_of_row(row, [scale](int) { return scale < 0.0f ? -scale : scale; });
      if (lane() == 0) store_shared(peaks() + head, peak[i]);
    });
    sync_warp();
    rows.for_each([&](int i, int head) {
      Query::prepare(query_words(), head, query + head * kConfig.head_dim, Query::kPeak / peak[i],
                     [scale](int) { return scale; });
      if constexpr (kRaw) {
        RawTiles<Plan>::Query::prepare(RawTiles<Plan>::words(), head,
                                       raw_query + head * kConfig.head_dim, 1.0f,
                                       [](int) { return 1.0f; });
      }
    });
  }
  VQ_DEVICE void take_query() {
    query_.load(query_words());
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const int head = quad * 4 + place_in_group();
      const bool real = head < kConfig.heads_per_block;
      scale_[quad] = real ? score_scale(args_) * load_shared(peaks() + head) / Query::kPeak : 0.0f;
    }
  }

  // Tokens [begin, end) of the block, a step at a time; warps take turns.
  VQ_DEVICE void attend() {
    const int end = of_warp(work_.end);
    const int number = of_warp(warp());
    int first = of_warp(work_.begin) + number * kBytesStep;
    const float below = Softmax::below_shared(work_.end - work_.begin);
    if (first >= end) {
      ask_for_raw();
      softmax_.share_maximum(below);
      return;
    }
    Codes codes;
    LookedUp entries;
    Products products = {};
    typename Softmax::Scores scores;
    load_keys(codes, number);
    load_values(codes, number);
    look_up_keys(entries, codes, 0);
    VQ_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn + 1 < kTurns) look_up_keys(entries, codes, turn + 1);
      score(products, entries, turn);
    }
    look_up_values(entries, codes, 0);
    Query::take_scores(products, scores);
    softmax_.take_maximum(scores, scale_, first, end);
    softmax_.share_maximum(below);
    while (true) {
      // Scores and codes are this step's. The next step's keys, if there is one, follow.
      const bool more = first + Rounds::kTokens < end;
      rounds_.go_on();
      if (more) {
        rounds_.wait();
        load_keys(codes, number);
      }
      Query::take_scores(products, scores);
      softmax_.to_exponents(scores, scale_, first, end);
      if (more) look_up_keys(entries, codes, 0);
      rounds_.give_back();
      const auto weights = softmax_.to_weights(scores);
      if (!more) {
        ask_for_raw();
        VQ_UNROLL
        for (int turn = 0; turn < kTurns; ++turn) {
          if (turn + 1 < kTurns) look_up_values(entries, codes, turn + 1);
          softmax_.add(turn, entries.values[turn % 2], weights);
        }
        return;
      }
      clear(products);
      VQ_UNROLL
      for (int turn = 0; turn < kTurns; ++turn) {
        if (turn + 1 < kTurns) {
          look_up_keys(entries, codes, turn + 1);
          look_up_values(entries, codes, turn + 1);
        } else {
          load_values(codes, number);
        }
        score(products, entries, turn);
        softmax_.add(turn, entries.values[turn % 2], weights);
        if (turn == 0) rounds_.refill();
      }
      look_up_values(entries, codes, 0);
      first += Rounds::kTokens;
    }
  }

  // This warp's raw tokens, whose first tile has been asked for.
  VQ_DEVICE void attend_raw(RawTiles<Plan>& raw) {
    raw.begin();
    const RawTokens tokens = RawTiles<Plan>::tokens();
    const float scale = score_scale(args_);
    for (int turn = 0; RawTiles<Plan>::has(tokens, turn); ++turn) {
      RawTiles<Plan>::await();
      raw.take_keys(turn, tokens, scale);
      RawTiles<Plan>::ask_keys(args_, tokens, turn + 1);
      RawTiles<Plan>::await();
      raw.add_values();
      RawTiles<Plan>::ask_values(args_, tokens, turn + 1);
    }
  }
  // Starts copying the first tile of raw tokens. Call it once this warp's part of the rounds is
  // read.
  VQ_DEVICE void ask_for_raw() const {
    if constexpr (kRaw) {
      const RawTokens tokens = RawTiles<Plan>::tokens();
      RawTiles<Plan>::ask_keys(args_, tokens, 0);
      RawTiles<Plan>::ask_values(args_, tokens, 0);
    }
  }

  // Broadcasts lane 0's value, so that the compiler knows it to be uniform.
  VQ_DEVICE static int of_warp(int value) {
    return static_cast<int>(shuffle(static_cast<u32>(value), 0));
  }
  VQ_DEVICE static void clear(Products& products) {
    VQ_UNROLL
    for (int i = 0; i < kTiles / 2 * kQuads * 4; ++i)
      products[i / 4 / kQuads][i / 4 % kQuads][i % 4] = 0;
  }

  // Loads this warp's codes of the round.
  VQ_DEVICE void load_keys(Codes& codes, int number) const {
    using Words = Either<kConfig.head_dim == 64, u32, U32x2>;
    const int token = number * kBytesStep + Softmax::token_of(lane_group());
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const Words words = load_shared_at<Words>(
          rounds_.keys() + static_cast<u32>((token + tile * 8) * Rounds::kRowBytes +
                                            place_in_group() * (Rounds::kRowBytes / 4)));
      VQ_UNROLL
      for (int i = 0; i < kKeyWords; ++i) codes.keys[tile][i] = word_of(words, i);
    }
  }
  VQ_DEVICE void load_values(Codes& codes, int number) const {
    using Word = Either<kConfig.head_dim == 64, u16, u32>;
    VQ_UNROLL
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int row = 2 * place_in_group() + i % 2;
      const int token = number * kBytesStep + i / 2 * 8 + Softmax::token_of(row);
      codes.values[i] = load_shared_at<Word>(
          rounds_.values() +
          static_cast<u32>(token * Rounds::kRowBytes + lane_group() * (Rounds::kRowBytes / 8)));
    }
  }

  // An octet of the keys of all tiles, and a sub-vector of the values of all rows.
  VQ_DEVICE static void look_up_keys(LookedUp& to, const Codes& codes, int turn) {
    VQ_UNROLL
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int code = 2 * turn + i % 2;
      to.keys[turn % 2][i / 2][i % 2] =
          Entries::look_up(codes.keys[i / 2][code / 4], code % 4, Entries::key_column());
    }
  }
  VQ_DEVICE static void look_up_values(LookedUp& to, const Codes& codes, int turn) {
    VQ_UNROLL
    for (int i = 0; i < 2 * kTiles; ++i) {
      to.values[turn % 2][i] = Entries::look_up(codes.values[i], turn, Entries::value_column());
    }
  }

  VQ_DEVICE void score(Products& products, const LookedUp& entries, int turn) const {
    typename Query::Octet octet;
    query_.read(octet, turn);
    query_.multiply(products, entries.keys[turn % 2], octet);
  }

  const AttentionDecodeArgs& args_;
  Work work_;
  Rounds rounds_;
  Query query_;
  float scale_[kQuads];
  Softmax softmax_;
};

template <class Plan>
VQ_DEVICE void attention_int8_mma(const AttentionDecodeArgs& args) {
  AttentionInt8MmaBlock<Plan>(args).run();
}

}  // namespace vq
