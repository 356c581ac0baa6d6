// attention_decode in integers: int8 entries of keys and values are multiplied as they come from
// their lookup by a query and probabilities of two bytes each, with exact sums.
//
//   codes    go through a pipeline of rounds, a step per warp (code_rounds.cuh)
//   entries  have a copy in each bank of shared memory (entry_columns.cuh)
//   scores   lane (g, c) looks up its quarter of the codes of token g of a tile, which are operand
//            a of products with the query's bytes (query_bytes.cuh)
//   values   lane (g, c) looks up its eighth of the codes of rows 2c and 2c + 1, which become
//            operand a by permutes (byte_softmax.cuh)
//
// A lane has as many codes of every part of keys or values (plan.h, LaneRow).
//
//   raw      full-precision tokens come after a warp's codes (raw_tiles.cuh)
//
// The values of a step and the scores of the next are interleaved, so that a warp has two
// independent instruction streams. Warps have their own maximum, sum and output and share no
// barrier before the end of a piece.
//
// A block may serve several query tokens, as further heads. Each has its own end of codes and its
// own raw tokens (token_ends.cuh); other tokens are masked to probability 0, which turns an
// infinite raw value into NaN.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_int8_mma/plan.h>
#include <vq/kernels/attention_int8_mma/byte_softmax.cuh>
#include <vq/kernels/attention_int8_mma/code_rounds.cuh>
#include <vq/kernels/attention_int8_mma/entry_columns.cuh>
#include <vq/kernels/attention_int8_mma/lane_codes.cuh>
#include <vq/kernels/attention_int8_mma/rotated_output.cuh>
#include <vq/kernels/attention_int8_mma/rotated_query.cuh>
#include <vq/ops/attention_query.cuh>
#include <vq/ops/query_rest.cuh>

namespace vq {

template <class Plan>
class AttentionInt8MmaBlock {
 public:
  using Work = AttentionWork<Plan>;
  using Softmax = ByteSoftmax<Plan>;
  using Entries = EntryColumns<Plan>;
  using Rounds = CodeRounds<Plan>;
  using KeyCodes = LaneCodes<Plan, false>;
  using ValueCodes = LaneCodes<Plan, true>;
  using Ends = TokenEnds<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr LaneRow kKeys = lane_row(kConfig, false);
  static constexpr LaneRow kValues = lane_row(kConfig, true);
  // The channels of a quarter's operand words are those of the keys' words.
  struct QueryOrder {
    VQ_DEVICE static int channel(int quarter, int, int word, int j) {
      int channel = 0;
      for_each_number<0, kKeys.count>([&](auto i) {
        constexpr LanePart kPart = kKeys.parts[i];
        if (word >= kPart.first_word) channel = channel_of_word(kPart, kKeyLanes, quarter, word, j);
      });
      return channel;
    }
  };
  static constexpr bool kRests = rests(kConfig);
  struct NoRotation {};
  using Query = Either<kRests, QueryRest<Plan, QueryOrder>, QueryBytes<Plan, QueryOrder>>;
  static constexpr AttentionInt8MmaShared kAt = bytes_layout(kConfig);
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kTiles = Softmax::kTiles;
  static constexpr int kQuads = Softmax::kQuads;
  // Octets of a key, and words of a value, per lane.
  static constexpr int kKeyTurns = query_span(kConfig.head_dim) / 32;
  static constexpr int kValueTurns = query_span(kConfig.value_dim) / 32;
  static constexpr bool kRaw = reads_raw(kConfig);
  static constexpr bool kRotates = QueryRows<Plan>::kGiven;
  static_assert(kHasMmaS8, "attention_int8_mma needs sm_80");

  VQ_DEVICE explicit AttentionInt8MmaBlock(const AttentionDecodeArgs& args)
      : args_(args), work_(Work::place_of_block()) {}

  // Entries serve all pieces of a block.
  VQ_DEVICE void run() {
    constexpr int kFilling = kWarps > 1 ? kConfig.threads - 32 : 32;
    if (thread_index() < kFilling) {
      Entries::template load<kFilling>(args_.keys, args_.values, work_.kv_head);
    }
    if constexpr (balanced(kConfig)) {
      after_last_launch();
      AttentionPieces<Plan> pieces(args_, block_x());
      pieces.for_each(args_, [this](const AttentionPiece& piece) {
        if (!work_.take(args_, piece)) return;
        rounds_ = Rounds();
        softmax_ = Softmax();
        attend_work();
        sync_block();  // the next piece's rounds lie over the warps' parts
      });
    } else {
      if constexpr (kRotates) rotation_.begin(args_, work_.kv_head);
      if constexpr (!Rounds::kPaged) Rounds::prefetch(args_, work_);
      after_last_launch();
      if (work_.read_lengths(args_)) attend_work();
    }
  }

 private:
  // Attends to work_'s tokens. The last warp issues the first round as soon as the previous launch
  // has ended; the other warps (or the same, if it is alone) have placed entries by then.
  VQ_DEVICE void attend_work() {
    const bool asks = thread_index() >= kConfig.threads - 32;  // the warp
    rounds_.point_at(args_, work_);
    QueryRows<Plan> rows(args_, work_);
    if (asks) rounds_.ask_for_first();
    const auto pages = rounds_.load_first_pages();
    // The sums of a rotated query lie over the other rounds.
    const bool few = !kRotates && rounds_.others_are_few();
    if (few) rounds_.ask_for_others(pages);
    if constexpr (Softmax::kSkips) softmax_.skip_below(work_.raw.sinks, work_.common_start);
    if constexpr (kRaw) {
      if (thread_index() == 0) RawTiles<Plan>::keep(RawTiles<Plan>::tokens_of(work_));
    }
    if constexpr (Ends::kSeveral) Ends::keep(work_);
    if constexpr (kRotates) rotation_.rotate(args_, work_, rows);
    make_query(rows);
    if constexpr (kRaw) RawTiles<Plan>::prefetch(args_, RawTiles<Plan>::tokens_of(work_));
    sync_block();
    if (!few) rounds_.ask_for_others(pages);
    take_query();
    softmax_.take_ends();
    if (asks) Rounds::await_first();
    sync_block();
    if constexpr (kRests) {  // a loop of its own, so that the common loop stays short
      Query::any_needs_rest(scale_) ? attend<true>() : attend<false>();
    } else {
      attend<false>();
    }
    typename Softmax::Raw raw;
    if constexpr (kRaw) attend_raw(raw);
    float scales[kMostLaneParts];
    load_scales<true>(scales, args_.values);
    const auto write = [this](int head, int channel, float value, float highest, float total) {
      if (head < work_.heads) work_.write_one(args_, head, channel, value, highest, total);
    };
    if constexpr (takes_out_of_basis(kConfig)) {
      RotatedOutput<Plan> output;
      output.begin(args_, work_);
      softmax_.merge(raw, scales, RotatedOutput<Plan>::keep);
      output.store_shifts(args_);
      output.for_each(args_, work_.kv_head, write);
    } else {
      softmax_.merge(raw, scales, write);
    }
    work_.merge_if_last(args_, kAt.merge);
  }

  using Products = i32[kTiles / 2][kQuads][4];
  struct Codes {
    typename KeyCodes::Rows keys;
    typename ValueCodes::Rows values;
  };
  // MMA operands, and the words of values: those of pairs stand in one for each code.
  struct LookedUp {
    u32 keys[kKeyTurns][kTiles][2];
    typename Softmax::ValueWords values[kValueTurns];
  };

  VQ_DEVICE static float* peaks() { return shared_part<float>(kAt.query_peaks); }
  VQ_DEVICE static u32* query_words() { return shared_part<u32>(kAt.query_words); }
  VQ_DEVICE static u32* query_rests() { return shared_part<u32>(kAt.query_rests); }

  template <bool kOfValues>
  VQ_HD static constexpr LaneRow row() {
    return kOfValues ? kValues : kKeys;
  }
  // The scales of the single stages of a row's parts, in its order.
  template <bool kOfValues>
  VQ_DEVICE void load_scales(float (&scales)[kMostLaneParts], const QuantizedArgs& tensor) const {
    for_each_number<0, row<kOfValues>().count>([&](auto i) {
      constexpr LanePart kPart = row<kOfValues>().parts[i];
      scales[i] = 1.0f;
      if constexpr (kPart.scaled) {
        scales[i] =
            load_constant(tensor.scales + kPart.first_scale + (kPart.per_head ? work_.kv_head : 0));
      }
    });
  }

  // Makes the query's operand words, one warp per head.
  VQ_DEVICE void make_query(const QueryRows<Plan>& rows) const {
    float scales[kMostLaneParts];
    load_scales<false>(scales, args_.keys);
    const auto scale = [&scales](int channel) {
      float own = scales[0];
      for_each_number<1, kKeys.count>([&](auto i) {
        constexpr LanePart kPart = kKeys.parts[i];
        constexpr int kChannels = lane_channels(kPart) * kKeyLanes;
        const int of_part = channel - kPart.first_channel;
        if (of_part >= 0 && of_part < kChannels) own = scales[i];
      });
      return own;
    };
    float* const query = shared_part<float>(kAt.query);
    using Row = typename QueryRows<Plan>::Row;
    float peak[QueryRows<Plan>::kOfWarp];
    float* const raw_query = shared_part<float>(kAt.raw_query);
    rows.store(1.0f, query, raw_query, [&](int i, int head, const Row& row) {
      peak[i] = peak_of_row(row, [&scale](int channel) {
        const float own = scale(channel);
        return own < 0.0f ? -own : own;
      });
      if (lane() == 0) store_shared(peaks() + head, peak[i]);
    });
    sync_warp();
    rows.for_each([&](int i, int head) {
      const float* const row = query + head * kConfig.head_dim;
      const float factor = Query::kPeak / peak[i];
      if constexpr (kRests) {
        Query::prepare(query_words(), query_rests(), head, row, factor, scale,
                       Query::needs_rest(score_scale(args_) / factor));
      } else {
        Query::prepare(query_words(), head, row, factor, scale);
      }
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

  // Tokens [begin, end) of the block, a step at a time; warps take turns. With kWithRest scores
  // have what rounding left of the query.
  template <bool kWithRest>
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
    Products rests = {};
    typename Softmax::Scores scores;
    KeyCodes::load(codes.keys, rounds_, number);
    ValueCodes::load(codes.values, rounds_, number);
    look_up_keys<0>(entries, codes);
    for_each_number<0, kKeyTurns>([&](auto turn) {
      if constexpr (turn + 1 < kKeyTurns) look_up_keys<turn + 1>(entries, codes);
      score<kWithRest>(products, rests, entries, turn);
    });
    look_up_values<0>(entries, codes);
    take_scores<kWithRest>(products, rests, scores);
    softmax_.take_maximum(scores, of_scores_, first, end);
    softmax_.share_maximum(below);
    while (true) {
      // Scores and codes are this step's. The next step's keys, if there is one, follow.
      const bool more = first + Rounds::kTokens < end;
      rounds_.go_on();
      if (more) {
        rounds_.wait();
        KeyCodes::load(codes.keys, rounds_, number);
      }
      take_scores<kWithRest>(products, rests, scores);
      softmax_.to_exponents(scores, of_scores_, first, end);
      if (more) look_up_keys<0>(entries, codes);
      const auto weights = softmax_.to_weights(scores);
      if (!more) {
        ask_for_raw();
        for_each_number<0, kValueTurns>([&](auto turn) {
          if constexpr (turn + 1 < kValueTurns) look_up_values<turn + 1>(entries, codes);
          softmax_.template add<turn>(entries.values[turn], weights);
        });
        return;
      }
      clear(products);
      if constexpr (kWithRest) clear(rests);
      for_each_number<0, most(kKeyTurns, kValueTurns)>([&](auto turn) {
        if constexpr (turn + 1 < kKeyTurns) look_up_keys<turn + 1>(entries, codes);
        if constexpr (turn + 1 < kValueTurns) look_up_values<turn + 1>(entries, codes);
        if constexpr (turn + 1 == kValueTurns) ValueCodes::load(codes.values, rounds_, number);
        if constexpr (turn < kKeyTurns) score<kWithRest>(products, rests, entries, turn);
        if constexpr (turn < kValueTurns) {
          softmax_.template add<turn>(entries.values[turn], weights);
        }
        if constexpr (turn == 0) rounds_.refill();
      });
      look_up_values<0>(entries, codes);
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
      raw.take_keys(args_, turn, tokens, scale);
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

  // An octet of the keys of all tiles: two words.
  template <int kTurn>
  VQ_DEVICE static void look_up_keys(LookedUp& to, const Codes& codes) {
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      look_up_word<2 * kTurn>(to, tile, codes.keys[tile]);
      look_up_word<2 * kTurn + 1>(to, tile, codes.keys[tile]);
    }
  }
  // Word kWord of a key of a tile; the first of a wide sub-vector brings the others.
  template <int kWord, int kWords>
  VQ_DEVICE static void look_up_word(LookedUp& to, int tile, const u32 (&codes)[kWords]) {
    constexpr int kPlace = part_of_word(kKeys, kWord);
    constexpr int kOwn = kWord - kKeys.parts[kPlace].first_word;
    constexpr int kTogether = piece_of(kKeys.parts[kPlace]) / 4;  // words; none of pairs
    if constexpr (kTogether == 0) {
      to.keys[kWord / 2][tile][kWord % 2] =
          byte_permute(KeyCodes::template entry<kPlace, 2 * kOwn>(codes),
                       KeyCodes::template entry<kPlace, 2 * kOwn + 1>(codes), 0x5410u);
    } else if constexpr (kOwn % kTogether == 0) {
      const auto words = KeyCodes::template entry<kPlace, kOwn / kTogether>(codes);
      VQ_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        to.keys[(kWord + i) / 2][tile][(kWord + i) % 2] = word_of(words, i);
      }
    }
  }
  // A word of the values of all rows; the first of a wide sub-vector brings the others.
  template <int kWord>
  VQ_DEVICE static void look_up_values(LookedUp& to, const Codes& codes) {
    constexpr int kPlace = part_of_word(kValues, kWord);
    constexpr int kOwn = kWord - kValues.parts[kPlace].first_word;
    constexpr int kTogether = piece_of(kValues.parts[kPlace]) / 4;  // words; none of pairs
    VQ_UNROLL
    for (int i = 0; i < 2 * kTiles; ++i) {
      const auto& own = codes.values[ValueCodes::row_of(i)];
      if constexpr (kWord == kValues.mixed_word) {
        to.values[kWord][0][i] = ValueCodes::template mixed_entry<0>(own);
        to.values[kWord][1][i] = ValueCodes::template mixed_entry<1>(own);
      } else if constexpr (kTogether == 0) {
        to.values[kWord][0][i] = ValueCodes::template entry<kPlace, 2 * kOwn>(own, i % 2);
        to.values[kWord][1][i] = ValueCodes::template entry<kPlace, 2 * kOwn + 1>(own, i % 2);
      } else if constexpr (kOwn % kTogether == 0) {
        const auto words = ValueCodes::template entry<kPlace, kOwn / kTogether>(own, i % 2);
        VQ_UNROLL
        for (int j = 0; j < kTogether; ++j) to.values[kWord + j][0][i] = word_of(words, j);
      }
    }
  }

  template <bool kWithRest>
  VQ_DEVICE void score(Products& products, Products& rests, const LookedUp& entries,
                       int turn) const {
    typename Query::Octet octet;
    query_.read(octet, turn);
    query_.multiply(products, entries.keys[turn], octet);
    if constexpr (kWithRest) {
      Query::read_from(query_rests(), octet, turn);
      query_.multiply(rests, entries.keys[turn], octet);
    }
  }
  template <bool kWithRest>
  VQ_DEVICE void take_scores(const Products& products, const Products& rests,
                             typename Softmax::Scores& scores) {
    Query::take_scores(products, scores);
    if constexpr (kWithRest) {
      typename Softmax::Scores further;
      Query::take_scores(rests, further);
      Query::add_scores(further, scores);
    }
    soft_cap<Plan>(args_, scores, scale_, of_scores_);
  }

  const AttentionDecodeArgs& args_;
  Work work_;
  Rounds rounds_;
  Query query_;
  Either<kRotates, RotatedQuery<Plan>, NoRotation> rotation_;
  float scale_[kQuads];      // of products
  float of_scores_[kQuads];  // of what take_scores() gives
  Softmax softmax_;
};

template <class Plan>
VQ_DEVICE void attention_int8_mma(const AttentionDecodeArgs& args) {
  AttentionInt8MmaBlock<Plan>(args).run();
}

}  // namespace vq
