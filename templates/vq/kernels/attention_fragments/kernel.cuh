// attention_decode on tensor cores: entries are operands of mma.m16n8k16 as they come from their
// lookup; no register is moved, shuffled or permuted on the way. Heads go in quads of four, tokens
// in tiles of 8; lane (g, c) as in lanes/fragment_lanes.cuh.
//
//   scores   lane (g, c) looks up channels [c head_dim / 4, ...) of token g (fragment_scores.cuh)
//   values   lane (g, c) looks up channels [g head_dim / 8, ...) of tokens 2c and 2c + 1
//            (warp_softmax.cuh).
//
// Each warp keeps a maximum, a sum and an output of its own and meets no barrier before the end.
// Raw tokens go the same way, with raw elements for entries.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_fragments/plan.h>
#include <vq/ops/attention_query.cuh>
#include <vq/ops/cache_codes.cuh>
#include <vq/ops/fragment_scores.cuh>
#include <vq/ops/warp_softmax.cuh>

namespace vq {

template <class Plan>
class AttentionFragmentsBlock {
 public:
  using Work = AttentionWork<Plan>;
  using Softmax = WarpSoftmax<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kTokens = kConfig.step_tokens;  // of one step of a warp
  static constexpr int kTiles = Softmax::kTiles;
  static constexpr int kQuads = Softmax::kQuads;
  static constexpr bool kRaw = reads_raw(kConfig);

  struct Values {
    // False: the one scale of all that is summed is left for the end.
    static constexpr bool kScaled = kRaw || kConfig.values.residuals > 1 ||
                                    units_per_head(kConfig.values, kConfig.head_dim) > 1;
    static constexpr Rebuilt kRebuilt =
        kScaled && kConfig.values.stage_scales ? Rebuilt::kSum : Rebuilt::kEntry;
    VQ_HD static constexpr FormatConfig config() { return kConfig.values; }
    VQ_HD static constexpr CodebookShared shared() { return fragments_layout(kConfig).values; }
  };
  using Scores = FragmentScores<Plan>;
  using RawQuery = typename Scores::RawQuery;
  using KeyRows = typename Scores::Rows;
  using ValueRows = FragmentRows<Plan, Values, 8>;
  static constexpr int kValueWords = ValueRows::kChannels / 2;
  using Reader = CacheCodes<Plan, KeyRows, ValueRows>;
  using Codes = typename Reader::Step;

  VQ_DEVICE explicit AttentionFragmentsBlock(const AttentionDecodeArgs& args)
      : args_(args),
        work_(Work::place_of_block()),
        scores_(args),
        value_book_(args.values, ValueRows::kTensorUnits) {}

  // Codebooks, which need not wait for the last launch, query and, once the sequence's length is
  // known, the first codes are in flight together. Keys and values begin with other threads.
  VQ_DEVICE void run() {
    const int key_thread = thread_index();
    const int value_thread = (key_thread + kConfig.threads / 2) % kConfig.threads;
    const auto keys = scores_.begin_load(work_.kv_head, key_thread);
    const auto values = ValueRows::bind(value_book_, work_.kv_head, value_thread);
    after_last_launch();
    if (!work_.read_lengths(args_)) return;
    const QueryRows<Plan> rows(args_, work_);
    const int begin = work_.begin > work_.raw.sinks ? work_.begin : work_.raw.sinks;
    const int end = work_.end < work_.raw.window ? work_.end : work_.raw.window;
    Codes codes{};
    if (Reader::first_step(begin) < end) {
      reader_.point_at_rows(args_, work_, end);
      reader_.ask_pages(Reader::first_step(begin));
      if (!Reader::kPaged) reader_.load_first(codes, Reader::first_step(begin), end);
    }
    scores_.finish_load(key_thread, keys);
    value_book_.finish_load(value_thread, values);
    if (Reader::kPaged && Reader::first_step(begin) < end) {
      reader_.load_first(codes, Reader::first_step(begin), end);
    }
    scores_.take_query(rows, score_scale(args_));
    attend(codes, begin, end);
    if constexpr (kRaw) {
      attend_raw(work_.begin, work_.end < work_.raw.sinks ? work_.end : work_.raw.sinks);
      const int after =
          work_.raw.sinks > work_.raw.window ? work_.raw.sinks : work_.raw.window;  // may overlap
      attend_raw(work_.begin > after ? work_.begin : after, work_.end);
    }
    const float scale = Values::kScaled ? 1.0f : value_book_.scale(0, 0);
    softmax_.merge([this, scale](int head, int channel, float value, float highest, float total) {
      if (head < work_.heads) work_.write_one(args_, head, channel, value * scale, highest, total);
    });
    work_.merge_if_last(args_);
  }

 private:
  // Tokens [begin, end), a step of kTokens at a time; warps take turns. `codes`: those of the
  // warp's first step. Two sets of registers take turns too, so that none is moved.
  VQ_DEVICE void attend(Codes& codes, int begin, int end) {
    int first = Reader::first_step(begin);
    if (first >= end) return;
    Codes other;
    while (true) {
      if (!step(codes, other, first, begin, end)) return;
      if (!step(other, codes, first, begin, end)) return;
    }
  }

  // The step from `first` on, the codes of the one to come in flight meanwhile. False where there
  // is none.
  VQ_DEVICE bool step(const Codes& now, Codes& next, int& first, int begin, int end) {
    const int following = first + kWarps * kTokens;
    const bool more = following < end;
    if (more) reader_.load(next, following, end);
    float scores[kTiles][kQuads];
    scores_.score(now.keys, scores);
    u32 words[2][2][kValueWords];
    look_up_values(words[0], now.values, 0);
    const int counted = Reader::kGroup > 1 && first < begin ? begin : first;
    softmax_.to_probabilities(scores, scores_.scale(), Reader::base_of(first, end), counted, end);
    accumulate(now.values, scores, words);
    first = following;
    return more;
  }

  // `words`: the first has been looked up; the lookups of the next products are under way
  // meanwhile.
  VQ_DEVICE void accumulate(const u32 (&loaded)[kTiles][2][ValueRows::Share::kLoaded],
                            const float (&probabilities)[kTiles][kQuads],
                            u32 (&words)[2][2][kValueWords]) {
    constexpr int kTurns = kTiles * ValueRows::kPasses;
    u32 b[kQuads][2];
    VQ_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn + 1 < kTurns) look_up_values(words[(turn + 1) % 2], loaded, turn + 1);
      loads_first();
      if (turn % ValueRows::kPasses == 0) {
        Softmax::spread(b, probabilities[turn / ValueRows::kPasses]);
      }
      const auto& now = words[turn % 2];
      VQ_UNROLL
      for (int j = 0; j < Softmax::kProducts; ++j) {
        softmax_.add(j, {now[0][2 * j], now[0][2 * j + 1], now[1][2 * j], now[1][2 * j + 1]}, b);
      }
    }
  }

  // Of one tile all channels of this lane, of one stage or of all.
  VQ_DEVICE void look_up_values(u32 (&words)[2][kValueWords],
                                const u32 (&loaded)[kTiles][2][ValueRows::Share::kLoaded],
                                int turn) const {
    u32 share[2][ValueRows::Share::kWords];
    VQ_UNROLL
    for (int i = 0; i < 2; ++i) {
      ValueRows::Share::align(share[i], loaded[turn / ValueRows::kPasses][i], lane_group());
    }
    VQ_UNROLL
    for (int s = 0; s < ValueRows::kSubVectors; ++s) {
      VQ_UNROLL
      for (int i = 0; i < 2; ++i) {
        ValueRows::look_up(words[i] + s * ValueRows::kVectorSize / 2, value_book_, share[i],
                           lane_group(), s, turn % ValueRows::kPasses);
      }
    }
  }

  // Tokens [begin, end) that are stored raw, all of them sinks or all of the window.
  VQ_DEVICE void attend_raw(int begin, int end) {
    RawQuery query;
    query.load(Scores::raw_words());
    float scale[kQuads];
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) scale[quad] = score_scale(args_);
    for (int first = begin + warp() * kTokens; first < end; first += kWarps * kTokens) {
      float scores[kTiles][kQuads];
      score_raw(query, first, end, scores);
      softmax_.to_probabilities(scores, scale, first, first, end);
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) accumulate_raw(first, tile, end, scores[tile]);
    }
  }

  // Tokens past the last repeat it.
  VQ_DEVICE static int held(int token, int end) { return token < end ? token : end - 1; }

  VQ_DEVICE void score_raw(const RawQuery& query, int first, int end,
                           float (&scores)[kTiles][kQuads]) const {
    float products[(kTiles + 1) / 2][RawQuery::kProducts][4] = {};
    VQ_UNROLL
    for (int octet = 0; octet < RawQuery::kOctets; ++octet) {
      u32 words[kTiles][4];
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const int token = held(Softmax::token_of(first, tile, lane_group()), end);
        const u16* row = work_.raw_key(args_, token, place_in_group() * KeyRows::kChannels);
        load_words<4>(words[tile], reinterpret_cast<const u32*>(row + octet * 8), LoadGlobal());
      }
      query.multiply(products, words, octet);
    }
    RawQuery::take_scores(products, scores);
  }

  VQ_DEVICE void accumulate_raw(int first, int tile, int end,
                                const float (&probabilities)[kQuads]) {
    u32 b[kQuads][2];
    Softmax::spread(b, probabilities);
    const int token = Softmax::token_of(first, tile, place_in_group() * 2);
    const auto row = [&](int of) {
      return reinterpret_cast<const U32x2*>(
          work_.raw_value(args_, held(of, end), lane_group() * ValueRows::kChannels));
    };
    const U32x2* const even = row(token);
    const U32x2* const odd = row(token + Softmax::kJoined);
    VQ_UNROLL
    for (int j = 0; j < Softmax::kProducts; ++j) {
      const U32x2 a = load_global(even + j);
      const U32x2 b_words = load_global(odd + j);
      softmax_.add(j, {a.x, a.y, b_words.x, b_words.y}, b);
    }
  }

  const AttentionDecodeArgs& args_;
  Work work_;
  Scores scores_;
  typename ValueRows::Book value_book_;
  Reader reader_;
  Softmax softmax_;
};

template <class Plan>
VQ_DEVICE void attention_fragments(const AttentionDecodeArgs& args) {
  AttentionFragmentsBlock<Plan>(args).run();
}

}  // namespace vq
