// Scores of tokens with a block's heads on tensor cores, for attention_mma.cuh: the keys'
// codebooks, the query and their MMAs.
//
//   a   lane (g, c) looks up channels [c head_dim / 4, ..) of token g of
//       two tiles, rows g and g + 8; an octet of words w0..w3 is k of two MMAs. With int8
//       entries an octet is two words of bytes, and k of one MMA (query_bytes.cuh, query_rest.cuh)
//   b   columns are heads and parts of the query (query_fragments.cuh): c0 and c1 give the scores
//       of token g with head c of each quad in the lane that needs them, c2 and c3 those of the
//       other tile's token. With group scales the query is rescaled per group (group_query.cuh)
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_mma/plan.h>
#include <vq/kernels/attention_mma/fragment_rows.cuh>
#include <vq/ops/attention_query.cuh>
#include <vq/ops/group_query.cuh>
#include <vq/ops/query_bytes.cuh>
#include <vq/ops/query_fragments.cuh>
#include <vq/ops/query_rest.cuh>

namespace vq {

// Stands in for a GroupQuery if keys have no group scales.
struct NoGroup {
  static constexpr float kPeak = 0.0f;
};

template <class Plan>
class FragmentScores {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr AttentionMmaShared kAt = fragments_layout(kConfig);
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kTiles = kConfig.step_tokens / 8;
  static constexpr int kQuads = quad_heads(kConfig) / 4;
  static constexpr bool kScales = kConfig.keys.stage_scales;
  static constexpr bool kScalar = is_scalar(kConfig.keys.decoder);
  static constexpr bool kGrouped = grouped_keys(kConfig);
  // Keys of int8 entries are multiplied as they are, where the machine has a product of integers,
  // and so are scalar ones.
  static constexpr bool kIntegers =
      (kConfig.keys.int8_entries && kHasMmaS8) || kConfig.keys.decoder == Decoder::scalar;
  static constexpr bool kRests = kIntegers && scales_channels(kConfig.keys, kHeadDim);
  static constexpr int kParts = query_parts(kConfig);
  static constexpr int kQueries = query_stages(kConfig);

  struct Keys {
    // The query takes the scales.
    static constexpr Rebuilt kRebuilt = kIntegers ? Rebuilt::kHeld : Rebuilt::kEntry;
    using Scalars =
        KeyOperand<kConfig.keys.decoder, kConfig.element, kConfig.keys.vector_size, kIntegers>;
    VQ_HD static constexpr FormatConfig config() { return kConfig.keys; }
    VQ_HD static constexpr CodebookShared shared() { return kAt.keys; }
  };
  using Rows = FragmentRows<Plan, Keys, 4>;
  using Order = Either<kScalar, typename Rows::Scalars, InOrder>;
  using Group = Either<kGrouped, GroupQuery<Plan, Keys>, NoGroup>;
  using Query = Either<
      kIntegers,
      Either<kRests, QueryRest<Plan, OctetsInOrder<Order>>, QueryBytes<Plan, OctetsInOrder<Order>>>,
      QueryFragments<Plan, kParts, Rows::kElement, Either<kGrouped, Order, InOrder>, !kGrouped>>;
  using Operand = Either<kGrouped, Group, Query>;
  using RawQuery = QueryFragments<Plan, 1, kConfig.element, InOrder, !kGrouped>;
  static constexpr int kOctetWords = 8 / Rows::kOfWord;
  static constexpr float kPeak = kGrouped ? Group::kPeak : Query::kPeak;

  VQ_DEVICE explicit FragmentScores(const AttentionDecodeArgs& args)
      : book_(args.keys, Rows::kTensorUnits) {}

  // The codebooks of a head, in two parts (codebook.cuh).
  VQ_DEVICE typename Rows::Book::Begun begin_load(int kv_head, int thread) {
    return Rows::bind(book_, kv_head, thread);
  }
  VQ_DEVICE void finish_load(int thread, const typename Rows::Book::Begun& begun) {
    book_.finish(thread, begun);
  }

  // The query's fragments, and what makes a product a score in units of log2. Has a barrier that
  // codebooks may wait for.
  VQ_DEVICE void take_query(const QueryRows<Plan>& rows, float scale) {
    using Row = typename QueryRows<Plan>::Row;
    float* const peaks = part(kAt.query_peaks);
    // Scales arrive with the codebooks; the query overwrites the merge buffer of the last piece.
    if constexpr (kScales || kScalar || balanced(kConfig)) {
      sync_block();
    }
    float peak[QueryRows<Plan>::kOfWarp];
    rows.store(1.0f, part(kAt.query), part(kAt.raw_query), [&](int i, int head, const Row& row) {
      peak[i] = kPeak;
      if constexpr (kParts == 2) {
        peak[i] = peak_of_row(row, [this](int channel) { return largest_scale(channel); });
        if (lane() == 0) store_shared(peaks + head, peak[i]);
      }
    });
    sync_warp();
    rows.for_each([&](int i, int head) {
      VQ_UNROLL
      for (int stage = 0; stage < kQueries; ++stage) {
        const float* const row = part(kAt.query) + head * kHeadDim;
        const float factor = kPeak / peak[i];
        const auto weight = [this, stage](int channel) { return key_scale(channel, stage); };
        if constexpr (kRests) {
          Query::prepare(query_words(stage), query_words(kQueries + stage), head, row, factor,
                         weight, Query::needs_rest(scale * peak[i] / kPeak));
        } else {
          Query::prepare(query_words(stage), head, row, factor, weight);
        }
      }
      if constexpr (reads_raw(kConfig)) {
        RawQuery::prepare(raw_words(), head, part(kAt.raw_query) + head * kHeadDim, 1.0f,
                          [](int) { return 1.0f; });
      }
    });
    sync_block();
    if constexpr (!kGrouped) {
      VQ_UNROLL
      for (int stage = 0; stage < kQueries; ++stage) queries_[stage].load(query_words(stage));
    }
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const int head = quad * 4 + place_in_group();
      scale_[quad] = kParts == 1 ? scale : 0.0f;
      if (kParts == 2 && head < kConfig.heads_per_block)
        scale_[quad] = scale * load_shared(peaks + head) / kPeak;
    }
    if constexpr (kRests) with_rest_ = Query::any_needs_rest(scale_);
  }

  // All lanes of the warp, before score() of the group's tokens; `read` as Group::make() takes it.
  template <class Read>
  VQ_DEVICE void take_group(Read read) {
    Group::make(zeros_, read);
  }

  // Tiles take turns, so that no product waits for the one before it. The lookups of the next
  // products are under way meanwhile.
  // With kWithRest, where with_rest() says so, also what rounding left of the query.
  template <bool kWithRest = false>
  VQ_DEVICE void score(const u32 (&loaded)[kTiles][Rows::Share::kLoaded],
                       float (&scores)[kTiles][kQuads]) const {
    u32 share[kTiles][Rows::Share::kWords];
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      Rows::Share::align(share[tile], loaded[tile], place_in_group());
    }
    typename Query::Sum products[(kTiles + 1) / 2][Query::kProducts][4] = {};
    constexpr int kTurns = Query::kOctets * Rows::kPasses;
    u32 words[2][kTiles][kOctetWords];
    typename Query::Octet octets[2];
    look_up_keys(words[0], share, 0);
    query_of(0).read(octets[0], 0);
    VQ_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      const int next = turn + 1;
      if (next < kTurns) {
        look_up_keys(words[next % 2], share, next);
        query_of(next).read(octets[next % 2], next / Rows::kPasses);
      }
      // With many heads' queries in registers, ptxas schedules better without this order.
      if constexpr (!Query::kMany) loads_first();
      query_of(turn).multiply(products, words[turn % 2], octets[turn % 2]);
    }
    Query::take_scores(products, scores);
    if constexpr (kWithRest) add_rest(share, scores);
    if constexpr (kGrouped) {
      VQ_UNROLL
      for (int i = 0; i < kTiles * kQuads; ++i) {
        float& score = scores[i / kQuads][i % kQuads];
        score = fused(score, Rows::Scalars::kOfSum, zeros_[i % kQuads]);
      }
    }
    if constexpr (kConfig.keys.token_scales) {
      VQ_UNROLL
      for (int i = 0; i < kTiles * kQuads; ++i) {
        scores[i / kQuads][i % kQuads] *=
            float_from_bits(loaded[i / kQuads][Rows::Share::kTouched]);
      }
    }
  }

  // True if a row of the block's query needs the rest. Such blocks run a loop of their own, so that
  // the common loop stays short.
  VQ_DEVICE bool with_rest() const { return kRests && with_rest_; }

  // Factor from sums to scores in units of log2, for each quad.
  VQ_DEVICE const float (&scale() const)[kQuads] { return scale_; }

  // The block's query as it came, in operand words, once take_query() has been called.
  VQ_DEVICE static u32* raw_words() { return words_at(kAt.raw_words); }

 private:
  VQ_DEVICE static float* part(i64 offset) { return shared_part<float>(offset); }
  VQ_DEVICE static u32* words_at(i64 offset) { return shared_part<u32>(offset); }
  // Stages of rests come after kQueries: rows of bytes take half of the space.
  static_assert(!kRests || 2 * (Query::kQuarter + kOctetWords) == quarter_words(kHeadDim) + 4, "");
  VQ_DEVICE static u32* query_words(int stage) {
    constexpr int kRows = kConfig.heads_per_block * kParts;
    return words_at(kAt.query_words) +
           stage * query_word(Query::kQuarter, Query::kOctetWords, kRows, 0, 0);
  }

  // Adds the scores that the rests of the query (query_rest.cuh) contribute.
  VQ_DEVICE void add_rest(const u32 (&share)[kTiles][Rows::Share::kWords],
                          float (&scores)[kTiles][kQuads]) const {
    typename Query::Sum products[(kTiles + 1) / 2][Query::kProducts][4] = {};
    VQ_UNROLL
    for (int turn = 0; turn < Query::kOctets * Rows::kPasses; ++turn) {
      u32 words[kTiles][kOctetWords];
      typename Query::Octet octet;
      look_up_keys(words, share, turn);
      const int stage = kScales ? turn % Rows::kPasses : 0;
      Query::read_from(query_words(kQueries + stage), octet, turn / Rows::kPasses);
      query_of(turn).multiply(products, words, octet);
    }
    float rests[kTiles][kQuads];
    Query::take_scores(products, rests);
    Query::add_scores(rests, scores);
  }

  // The query that a turn of score() multiplies by.
  VQ_DEVICE const Operand& query_of(int turn) const {
    return queries_[kScales ? turn % Rows::kPasses : 0];
  }

  VQ_DEVICE float largest_scale(int channel) const {
    float most = 0.0f;
    VQ_UNROLL
    for (int stage = 0; stage < kQueries; ++stage) {
      const float scale = key_scale(channel < kHeadDim ? channel : 0, stage);
      most = scale > most ? scale : -scale > most ? -scale : most;
    }
    return most;
  }
  // A channel's scale. With group scales stage 0 scales those, stage 1 the zeros.
  VQ_DEVICE float key_scale(int channel, int stage) const {
    if constexpr (kGrouped) {
      if (stage == 1) return 1.0f;
      return Rows::channel_scale(book_, channel) *
             Rows::Scalars::weight(Rows::Scalars::place(channel % 8));
    }
    if constexpr (kScalar) return Rows::channel_scale(book_, channel);
    return book_.scale(Rows::unit_of(channel), stage);
  }

  // One octet of all tiles, of one stage or of all.
  VQ_DEVICE void look_up_keys(u32 (&words)[kTiles][kOctetWords],
                              const u32 (&share)[kTiles][Rows::Share::kWords], int turn) const {
    const int octet = turn / Rows::kPasses;
    if constexpr (kScalar) {
      using Scalars = typename Rows::Scalars;
      constexpr int kCodes = 8 / Scalars::kChannels;  // words of them
      VQ_UNROLL
      for (int i = 0; i < kTiles * kCodes; ++i) {
        const u32* const codes = share[i / kCodes] + octet * kCodes;
        Scalars::unpack(words[i / kCodes] + i % kCodes * Scalars::kWords, codes[i % kCodes]);
      }
      return;
    }
    constexpr int kVectors = 8 / Rows::kVectorSize;
    VQ_UNROLL
    for (int i = 0; i < kTiles * kVectors; ++i) {
      const int s = i % kVectors;
      Rows::look_up(words[i / kVectors] + s * Rows::kVectorSize / Rows::kOfWord, book_,
                    share[i / kVectors], place_in_group(), octet * kVectors + s,
                    turn % Rows::kPasses);
    }
  }

  typename Rows::Book book_;
  Operand queries_[kGrouped ? 1 : kQueries];
  float zeros_[kQuads];  // products with a group's zeros
  float scale_[kQuads];
  bool with_rest_;  // whether a row of the block needs it
};

}  // namespace vq
