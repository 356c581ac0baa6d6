// attention_decode on tensor cores: entries are operands of mma.m16n8k16 as they come from their
// lookup, with no shuffles or permutes. Heads go in quads, tokens in tiles of 8; lane (g, c) as in
// lanes/fragment_lanes.cuh.
//
//   scores   lane (g, c) looks up channels [c head_dim / 4, ...) of token g (fragment_scores.cuh)
//   values   lane (g, c) looks up channels [g value_dim / 8, ...) of tokens 2c and 2c + 1, or more
//            of these (warp_softmax.cuh).
//
// Warps have their own maximum, sum and output and share no barrier before the end. Raw tokens take
// the same path with raw elements for entries. Scalar codes become operands in a few instructions
// (codebook/scalar_operands.cuh): the query takes the keys' scales, sums of values theirs.
//
// A block may serve several query tokens, as further heads. Each has its own end of codes and raw
// tokens; others are masked to probability 0, which turns an infinite raw value into NaN.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_mma/plan.h>
#include <vq/kernels/attention_mma/cache_codes.cuh>
#include <vq/kernels/attention_mma/fragment_scores.cuh>
#include <vq/kernels/attention_mma/ring_codes.cuh>
#include <vq/kernels/attention_mma/weighted_values.cuh>
#include <vq/ops/attention_query.cuh>

namespace vq {

template <class Plan>
class AttentionMmaBlock {
 public:
  using Work = AttentionWork<Plan>;
  using Softmax = WarpSoftmax<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kTokens = kConfig.step_tokens;  // tokens per step of a warp
  static constexpr int kTiles = Softmax::kTiles;
  static constexpr int kQuads = Softmax::kQuads;
  static constexpr Element kElement = kConfig.element;
  static constexpr bool kRaw = reads_raw(kConfig);

  struct Values {
    static constexpr bool kScalar = is_scalar(kConfig.values.decoder);
    // False: the one scale of all codes is left until they are summed.
    static constexpr bool kScaled = kScalar || kConfig.values.num_codebooks > 1 ||
                                    units_per_head(kConfig.values, kConfig.value_dim) > 1;
    static constexpr Rebuilt kRebuilt =
        kScaled && kConfig.values.stage_scales ? Rebuilt::kSum : Rebuilt::kEntry;
    VQ_HD static constexpr FormatConfig config() { return kConfig.values; }
    using Scalars = typename Softmax::Scalars;
    VQ_HD static constexpr CodebookShared shared() { return fragments_layout(kConfig).values; }
  };
  using Scores = FragmentScores<Plan>;
  using RawQuery = typename Scores::RawQuery;
  using KeyRows = typename Scores::Rows;
  using ValueRows = FragmentRows<Plan, Values, Softmax::kLanes>;
  static constexpr int kValueWords = ValueRows::kChannels / 2;
  using Weighted = WeightedValues<Plan, ValueRows>;
  template <template <class...> class Codes>
  using ReaderOf = Codes<Plan, KeyRows, ValueRows, typename Scores::Group>;
  using Reader = Either<(kConfig.code_stages > 0), ReaderOf<RingCodes>, ReaderOf<CacheCodes>>;
  using Codes = typename Reader::Step;

  VQ_DEVICE explicit AttentionMmaBlock(const AttentionDecodeArgs& args)
      : args_(args),
        work_(Work::place_of_block()),
        scores_(args),
        value_book_(args.values, ValueRows::kTensorUnits) {}

  // Codebooks (which need not wait for the previous launch), the query and, once the length is
  // known, the first codes are in flight together. Keys and values start with different threads.
  // Codebooks serve all pieces of a block.
  VQ_DEVICE void run() {
    const int key_thread = thread_index();
    const int value_thread = (key_thread + kConfig.threads / 2) % kConfig.threads;
    const auto keys = scores_.begin_load(work_.kv_head, key_thread);
    const auto values = ValueRows::bind(value_book_, work_.kv_head, value_thread);
    if constexpr (Reader::kRing) reader_.begin();
    after_last_launch();
    const auto finish_keys = [&] { scores_.finish_load(key_thread, keys); };
    const auto finish_values = [&] { value_book_.finish(value_thread, values); };
    if constexpr (balanced(kConfig)) {
      AttentionPieces<Plan> pieces(args_, block_x());
      finish_keys();
      finish_values();
      pieces.for_each(args_, [&](const AttentionPiece& piece) {
        if (!work_.take(args_, piece)) return;
        softmax_ = Softmax();
        attend_split([] {}, [] {});
      });
    } else {
      if (work_.read_lengths(args_)) {
        attend_split(finish_keys, finish_values);
      } else if constexpr (Scores::Rows::Book::kByCopies || ValueRows::Book::kByCopies) {
        copy_async_wait<0>();  // nothing is under way when the block ends
      }
    }
  }

 private:
  // Attends to work_'s tokens. The codebooks are complete after both functions have been called.
  template <class FinishKeys, class FinishValues>
  VQ_DEVICE void attend_split(FinishKeys finish_keys, FinishValues finish_values) {
    const QueryRows<Plan> rows(args_, work_);
    const int begin = seen_from(work_.begin > work_.raw.sinks ? work_.begin : work_.raw.sinks);
    const int end = work_.end < work_.raw.recent_tokens ? work_.end : work_.raw.recent_tokens;
    Codes codes{};
    if (Reader::first_step(begin) < end) {
      reader_.point_at_rows(args_, work_, end);
      reader_.ask_pages(Reader::first_step(begin));
      if (!Reader::kPaged) reader_.load_first(codes, Reader::first_step(begin), end);
    }
    finish_keys();
    if (Reader::kPaged && Reader::first_step(begin) < end) {
      reader_.load_first(codes, Reader::first_step(begin), end);
    }
    finish_values();
    scores_.take_query(rows, score_scale(args_));
    if constexpr (Scores::kRests) {
      scores_.with_rest() ? attend<true>(codes, begin, end) : attend<false>(codes, begin, end);
    } else {
      attend<false>(codes, begin, end);
    }
    if constexpr (Values::kScalar) {
      softmax_.end_scalars(
          [this](int channel) { return ValueRows::channel_scale(value_book_, channel); });
    }
    if constexpr (kRaw) {
      if constexpr (!Values::kScaled && kConfig.values.stage_scales) {
        softmax_.scale_outputs(value_book_.scale(0, 0));
      }
      attend_raw(seen_from(work_.begin), work_.end < work_.raw.sinks ? work_.end : work_.raw.sinks);
      const int first = work_.raw_begin();
      const int after = work_.raw.sinks > first ? work_.raw.sinks : first;  // may overlap
      attend_raw(seen_from(work_.begin > after ? work_.begin : after), work_.end);
    }
    const float scale = Values::kScaled || kRaw ? 1.0f : value_book_.scale(0, 0);
    softmax_.merge(work_.is_whole(), [this, scale](int head, int channel, float even, float odd,
                                                   float highest, float total) {
      if (head < work_.heads)
        work_.write_two(args_, head, channel, even * scale, odd * scale, highest, total);
    });
    work_.merge_if_last(args_, balanced(kConfig) ? fragments_layout(kConfig).merge : 0);
  }

  // `token`, or the first that any query token of the block sees if that is behind it.
  VQ_DEVICE int seen_from(int token) const {
    if constexpr (!Work::kSeesPart) return token;
    return token > work_.start ? token : work_.start;
  }

  // Attends to tokens [begin, end) in steps of kTokens, which the warps share out. `codes` are
  // those of the warp's first step. Two register sets alternate, so that no register is moved.
  template <bool kWithRest>
  VQ_DEVICE void attend(Codes& codes, int begin, int end) {
    int first = Reader::first_step(begin);
    if (first >= end) return;
    if constexpr (Reader::kRing) {
      for (; first < end; first += Reader::kTurn) attend_stage<kWithRest>(first, begin, end);
    } else {
      Codes other;
      while (true) {
        if (!step<0, kWithRest>(codes, other, first, begin, end)) return;
        if (!step<Reader::kSteps - 1, kWithRest>(other, codes, first, begin, end)) return;
      }
    }
  }

  // The turn from `first` on, a stage of the ring, which is read before anything is made of it.
  template <bool kWithRest>
  VQ_DEVICE void attend_stage(int first, int begin, int end) {
    reader_.await();
    Codes codes[Reader::kSteps];
    reader_.template read<0>(codes[0]);
    if constexpr (Reader::kSteps == 2) reader_.template read<1>(codes[1]);
    if constexpr (Reader::kGrouped) {
      scores_.take_group([this](u32(&words)[8], int octet) { reader_.read_scales(words, octet); });
    }
    reader_.ask_next(first, end);
    VQ_UNROLL
    for (int i = 0; i < Reader::kSteps; ++i) {
      attend_step<kWithRest>(codes[i], first + i * kTokens, begin, end);
    }
  }

  // Runs the step from `first` on, number kStep of a turn, while the next step's codes load.
  // Returns false after the last step.
  template <int kStep, bool kWithRest>
  VQ_DEVICE bool step(const Codes& now, Codes& next, int& first, int begin, int end) {
    int following = first + Reader::template to_next<kStep>();
    // One scoreboard counts both steps' loads: without this dependence ptxas would let this step
    // wait for the next step's codes.
    if constexpr (Reader::kGrouped) {
      following += static_cast<int>(zero_behind(now.values[kTiles - 1][1][0]));
    }
    const bool more = following < end;
    // Copies of the next group's scales go where this one's are until it is taken.
    constexpr bool kTakeFirst = Reader::kSteps == 1;
    if constexpr (Reader::kGrouped && kTakeFirst) take_copied_group();
    if (more) reader_.template load<(kStep + 1) % Reader::kSteps>(next, following, end);
    if constexpr (Reader::kGrouped && !kTakeFirst && kStep == 0) {
      loads_first();  // else they begin once the copies have ended
      take_copied_group();
    }
    attend_step<kWithRest>(now, first, begin, end);
    first = following;
    return more;
  }
  VQ_DEVICE void take_copied_group() {
    Scores::Group::await_copy();
    scores_.take_group([](u32(&words)[8], int octet) { Scores::Group::read_copied(words, octet); });
  }

  // The step from `first` on, whose codes are there.
  template <bool kWithRest>
  VQ_DEVICE void attend_step(const Codes& now, int first, int begin, int end) {
    float scores[kTiles][kQuads];
    scores_.template score<kWithRest>(now.keys, scores);
    float scale[kQuads];
    soft_cap<Plan>(args_, scores, scores_.scale(), scale);
    u32 words[2][2][kValueWords];
    if constexpr (!Values::kScalar) look_up_values(words[0], now.values, 0);
    constexpr bool kScaled = scaled_probabilities(kConfig.values);
    typename Softmax::Scales scales{};
    if constexpr (kScaled) {
      scales = Softmax::scales_of(
          [&now](int tile, int i) { return now.values[tile][i][ValueRows::Share::kTouched]; });
    }
    const int counted = Reader::kAligned > 1 && first < begin ? begin : first;
    softmax_.template to_probabilities<kScaled>(
        scores, scale, Reader::base_of(first, end), counted, end,
        {work_.common_start, work_.least_codes_end()},
        [this](int query_token, int token) {
          return token < work_.codes_end(query_token) && token >= work_.seen_begin(query_token);
        },
        scales);
    if constexpr (Softmax::kZeros) {
      Weighted::add_affine(softmax_, now.values, scores, Reader::base_of(first, end), counted, end);
    } else if constexpr (Values::kScalar) {
      Weighted::add_scalars(softmax_, now.values, scores);
    } else {
      accumulate(now.values, scores, words);
    }
  }

  // `words`: the first has been looked up; the lookups of the next products are under way
  // meanwhile.
  VQ_DEVICE void accumulate(const u32 (&loaded)[kTiles][2][ValueRows::Share::kLoaded],
                            const float (&probabilities)[kTiles][kQuads],
                            u32 (&words)[2][2][kValueWords]) {
    constexpr int kTurns = kTiles * ValueRows::kPasses;
    u32 b[kQuads][2];
    U32x2 first[kValueWords];  // values of the first tile of a pair
    VQ_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn + 1 < kTurns) look_up_values(words[(turn + 1) % 2], loaded, turn + 1);
      loads_first();
      const auto& now = words[turn % 2];
      if constexpr (Softmax::kPaired) {
        const int tile = tile_of(turn);
        if (pass_of(turn) == 0)
          Softmax::template spread_pairs<kElement>(b, probabilities[tile], tile);
        VQ_UNROLL
        for (int w = 0; w < kValueWords; ++w) {
          const U32x2 rows = Softmax::rows_of(now[0][w], now[1][w]);
          if (tile % 2 == 0) {
            first[w] = rows;
          } else {
            softmax_.template add_pairs<kElement>(w, first[w], rows, b);
          }
        }
        continue;
      }
      if (pass_of(turn) == 0) Softmax::template spread<kElement>(b, probabilities[tile_of(turn)]);
      VQ_UNROLL
      for (int j = 0; j < Softmax::kProducts; ++j) {
        softmax_.template add<kElement>(
            j, {now[0][2 * j], now[0][2 * j + 1], now[1][2 * j], now[1][2 * j + 1]}, b);
      }
    }
  }

  // Tiles take their passes one after the other, pairs of them together.
  VQ_DEVICE static constexpr int tile_of(int turn) {
    if constexpr (Softmax::kPaired) return turn / (2 * ValueRows::kPasses) * 2 + turn % 2;
    return turn / ValueRows::kPasses;
  }
  VQ_DEVICE static constexpr int pass_of(int turn) {
    return (Softmax::kPaired ? turn / 2 : turn) % ValueRows::kPasses;
  }

  // Looks up all of this lane's channels for one tile, of one stage or of all.
  VQ_DEVICE void look_up_values(u32 (&words)[2][kValueWords],
                                const u32 (&loaded)[kTiles][2][ValueRows::Share::kLoaded],
                                int turn) const {
    u32 share[2][ValueRows::Share::kWords];
    VQ_UNROLL
    for (int i = 0; i < 2; ++i) {
      ValueRows::Share::align(share[i], loaded[tile_of(turn)][i], Softmax::share());
    }
    VQ_UNROLL
    for (int s = 0; s < ValueRows::kSubVectors; ++s) {
      VQ_UNROLL
      for (int i = 0; i < 2; ++i) {
        ValueRows::look_up(words[i] + s * ValueRows::kVectorSize / 2, value_book_, share[i],
                           Softmax::share(), s, pass_of(turn));
      }
    }
  }

  // Tokens [begin, end) that are stored raw, all of them sinks or all of the window.
  VQ_DEVICE void attend_raw(int begin, int end) {
    if (begin >= end) return;  // else steps that begin before `begin` would read what is not there
    RawQuery query;
    query.load(Scores::raw_words());
    float scale[kQuads];
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) scale[quad] = score_scale(args_);
    constexpr int kTurn = kWarps * kTokens;
    const int before = kConfig.batch_invariant ? begin % kTurn : 0;  // aligned to token numbers
    for (int first = begin - before + warp() * kTokens; first < end; first += kTurn) {
      float scores[kTiles][kQuads];
      score_raw(query, first, begin, end, scores);
      float of_scores[kQuads];
      soft_cap<Plan>(args_, scores, scale, of_scores);
      const int counted = first < begin ? begin : first;
      softmax_.template to_probabilities<false>(
          scores, of_scores, first, counted, end, {},
          [this](int query_token, int token) {
            const bool raw = token < work_.raw.sinks || token >= work_.codes_end(query_token);
            const bool seen = raw && token < work_.seen_end(query_token) &&
                              token >= work_.seen_begin(query_token);
            if constexpr (Work::kTree) return seen && work_.is_on_path(query_token, token);
            return seen;
          },
          {});
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; tile += Softmax::kPaired ? 2 : 1) {
        accumulate_raw(first, tile, begin, end, scores);
      }
    }
  }

  // Tokens past the last repeat it, and those before the first that one.
  VQ_DEVICE static int held(int token, int begin, int end) {
    if (kConfig.batch_invariant && token < begin) return begin;
    return token < end ? token : end - 1;
  }

  VQ_DEVICE void score_raw(const RawQuery& query, int first, int begin, int end,
                           float (&scores)[kTiles][kQuads]) const {
    float products[(kTiles + 1) / 2][RawQuery::kProducts][4] = {};
    VQ_UNROLL
    for (int octet = 0; octet < RawQuery::kOctets; ++octet) {
      u32 words[kTiles][4];
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const int token = held(Softmax::token_of(first, tile, lane_group()), begin, end);
        const u16* row = work_.raw_key(args_, token, place_in_group() * KeyRows::kChannels);
        load_words<4>(words[tile], reinterpret_cast<const u32*>(row + octet * 8), LoadGlobal());
      }
      typename RawQuery::Octet query_octet;
      query.read(query_octet, octet);
      query.multiply(products, words, query_octet);
    }
    RawQuery::take_scores(products, scores);
  }

  // One tile, or the pair that begins with it.
  VQ_DEVICE void accumulate_raw(int first, int tile, int begin, int end,
                                const float (&probabilities)[kTiles][kQuads]) {
    u32 words[Softmax::kPaired ? 2 : 1][2][kValueWords];
    VQ_UNROLL
    for (int n = 0; n < (Softmax::kPaired ? 4 : 2); ++n) {
      const int token = Weighted::token_of(first, tile + n / 2, n % 2);
      const u16* const row =
          work_.raw_value(args_, held(token, begin, end), Softmax::share() * ValueRows::kChannels);
      VQ_UNROLL
      for (int w = 0; w < kValueWords; w += 2) {
        load_words<2>(words[n / 2][n % 2] + w, reinterpret_cast<const u32*>(row) + w, LoadGlobal());
      }
      Softmax::arrange(words[n / 2][n % 2]);
    }
    u32 b[kQuads][2];
    Weighted::template spread<kElement>(b, probabilities, tile);
    Weighted::template add_words<kElement>(softmax_, 0, words, b);
  }

  const AttentionDecodeArgs& args_;
  Work work_;
  Scores scores_;
  typename ValueRows::Book value_book_;
  Reader reader_;
  Softmax softmax_;
};

template <class Plan>
VQ_DEVICE void attention_mma(const AttentionDecodeArgs& args) {
  AttentionMmaBlock<Plan>(args).run();
}

}  // namespace vq
