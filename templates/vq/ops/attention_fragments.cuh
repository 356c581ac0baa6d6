// attention_decode on tensor cores: entries are operands of mma.m16n8k16 as they come from their
// lookup; no register is moved, shuffled or permuted on the way. Heads go in quads of four, tokens
// in tiles of 8; lane (g, c) = (lane / 4, lane % 4).
//
//   scores   a = keys: lane (g, c) looks up channels [c head_dim / 4, ...) of token g of two tiles,
//            rows g and g + 8; an octet of words w0..w3 is k of two products. Columns of b: heads
//            and parts of the query (query_fragments.cuh), so that of c0 and c1 come the scores of
//            token g with heads c, in the lane that needs them, of c2 and c3 the other tile's.
//   values   lane (g, c) looks up channels [g head_dim / 8, ...) of tokens 2c and 2c + 1
//            (warp_softmax.cuh).
//
// Each warp keeps a maximum, a sum and an output of its own and meets no barrier before the end.
// Raw tokens go the same way, with raw elements for entries.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/layout/attention_fragments.h>
#include <vq/ops/attention_query.cuh>
#include <vq/ops/cache_codes.cuh>
#include <vq/ops/fragment_rows.cuh>
#include <vq/ops/query_fragments.cuh>
#include <vq/ops/warp_softmax.cuh>

namespace vq {

template <class Plan>
class AttentionFragments {
 public:
  using Work = AttentionWork<Plan>;
  using Softmax = WarpSoftmax<Plan>;
  static constexpr AttentionDecodeConfig kConfig = Plan::config();
  static constexpr AttentionFragmentsShared kAt = fragments_layout(kConfig);
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kTokens = kConfig.tile_tokens;  // of one step of a warp
  static constexpr int kTiles = Softmax::kTiles;
  static constexpr int kQuads = Softmax::kQuads;
  static constexpr int kOctets = kHeadDim / 32;
  static constexpr bool kRaw = raw_slots(kConfig) > 0;
  static constexpr bool kScales = kConfig.keys.stage_scales;
  static constexpr int kParts = transformed(kConfig) || kScales ? 2 : 1;
  static constexpr int kQueries = kScales ? kConfig.keys.residuals : 1;  // one a stage, or for all

  struct Keys {
    static constexpr bool kScaled = false;  // the query takes the scales
    VQ_HD static constexpr FormatConfig config() { return kConfig.keys; }
    VQ_HD static constexpr CodebookShared shared() { return kAt.keys; }
  };
  struct Values {
    static constexpr bool kScaled = true;
    VQ_HD static constexpr FormatConfig config() { return kConfig.values; }
    VQ_HD static constexpr CodebookShared shared() { return kAt.values; }
  };
  using Query = QueryFragments<Plan, kParts>;
  using RawQuery = QueryFragments<Plan, 1>;
  using KeyRows = FragmentRows<Plan, Keys, 4>;
  using ValueRows = FragmentRows<Plan, Values, 8>;
  using Reader = CacheCodes<Plan, KeyRows, ValueRows>;
  using Codes = typename Reader::Step;

  VQ_DEVICE explicit AttentionFragments(const AttentionDecodeArgs& args)
      : args_(args),
        work_(Work::of_block(args)),
        key_book_(args.keys, KeyRows::kTensorUnits),
        value_book_(args.values, ValueRows::kTensorUnits) {}

  // Query, codebooks and, once the sequence's length is known, the first codes are in flight
  // together. Keys and values begin with other threads.
  VQ_DEVICE void run() {
    const int key_thread = thread_index();
    const int value_thread = (key_thread + kConfig.threads / 2) % kConfig.threads;
    const QueryRows<Plan> rows(args_, work_);
    const auto keys = KeyRows::bind(key_book_, work_.kv_head, key_thread);
    const auto values = ValueRows::bind(value_book_, work_.kv_head, value_thread);
    const int begin = work_.begin > work_.sinks ? work_.begin : work_.sinks;
    const int end = work_.end < work_.window ? work_.end : work_.window;
    Codes codes{};
    if (Reader::first_step(begin) < end) {
      reader_.point_at_rows(args_, work_, end);
      reader_.load(codes, Reader::first_step(begin), end);
    }
    key_book_.finish_load(key_thread, keys);
    value_book_.finish_load(value_thread, values);
    take_query(rows);
    attend(codes, begin, end);
    if constexpr (kRaw) {
      attend_raw(work_.begin, work_.end < work_.sinks ? work_.end : work_.sinks);
      const int after = work_.sinks > work_.window ? work_.sinks : work_.window;  // may overlap
      attend_raw(work_.begin > after ? work_.begin : after, work_.end);
    }
    softmax_.merge([this](int head, int channel, float value, float highest, float total) {
      if (head < work_.heads) work_.write_one(args_, head, channel, value, highest, total);
    });
    work_.merge_if_last(args_);
  }

 private:
  VQ_DEVICE static float* part(i64 offset) {
    return reinterpret_cast<float*>(shared_memory() + offset);
  }
  VQ_DEVICE static float* query() { return part(kAt.query); }
  VQ_DEVICE static float* raw_query() { return part(kAt.raw_query); }

  // The query's fragments, and what makes a product a score in units of log2. Has a barrier that
  // codebooks may wait for.
  VQ_DEVICE void take_query(const QueryRows<Plan>& rows) {
    using Row = typename QueryRows<Plan>::Row;
    const float scale = score_scale(args_);
    float* const peaks = part(kAt.query_peaks);
    if constexpr (kScales) sync_block();  // they have come with the keys' codebooks
    rows.store(
        1.0f, query(), raw_query(),
        [](int head, int channel) { return query_place(kHeadDim, head, channel); },
        [&](int head, const Row& row) {
          if constexpr (kParts == 2) {
            const auto weight = [this](int channel) { return largest_scale(channel); };
            const float peak = peak_of_row(row, weight);
            if (lane() == 0) store_shared(peaks + head, peak);
          }
        });
    sync_block();
    if constexpr (kParts == 1) {
      queries_[0].load(
          query(), [](int) { return 1.0f; }, [](int) { return 1.0f; });
      VQ_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) scale_[quad] = scale;
    } else {
      constexpr float kPeak = 128.0f;
      VQ_UNROLL
      for (int stage = 0; stage < kQueries; ++stage) {
        queries_[stage].load(
            query(), [peaks](int head) { return kPeak / load_shared(peaks + head); },
            [this, stage](int channel) { return key_scale(channel, stage); });
      }
      VQ_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        const int head = quad * 4 + lane() % 4;
        scale_[quad] = 0.0f;
        if (head < kConfig.heads_per_block)
          scale_[quad] = scale * load_shared(peaks + head) / kPeak;
      }
    }
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
  VQ_DEVICE float key_scale(int channel, int stage) const {
    return key_book_.scale(KeyRows::unit_of(channel), stage);
  }

  // Tokens [begin, end), a step of kTokens at a time; warps take turns. `next`: the codes of the
  // warp's first step. Those of the step to come are in flight meanwhile.
  VQ_DEVICE void attend(Codes& next, int begin, int end) {
    for (int first = Reader::first_step(begin); first < end; first += kWarps * kTokens) {
      const Codes now = next;
      const int following = first + kWarps * kTokens;
      reader_.load(next, following < end ? following : first, end);
      float scores[kTiles][kQuads];
      score(now.keys, scores);
      const int counted = Reader::kGroup > 1 && first < begin ? begin : first;
      softmax_.to_probabilities(scores, scale_, Reader::base_of(first, end), counted, end);
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) accumulate(now.values[tile], scores[tile]);
    }
  }

  // Tiles take turns, so that no product waits for the one before it.
  VQ_DEVICE void score(const u32 (&loaded)[kTiles][KeyRows::Share::kLoaded],
                       float (&scores)[kTiles][kQuads]) const {
    u32 share[kTiles][KeyRows::Share::kWords];
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      KeyRows::Share::align(share[tile], loaded[tile], lane() % 4);
    }
    float products[(kTiles + 1) / 2][Query::kProducts][4] = {};
    VQ_UNROLL
    for (int octet = 0; octet < kOctets; ++octet) {
      VQ_UNROLL
      for (int pass = 0; pass < KeyRows::kPasses; ++pass) {
        constexpr int kVectors = 8 / KeyRows::kVectorSize;
        u32 words[kTiles][4];
        VQ_UNROLL
        for (int i = 0; i < kTiles * kVectors; ++i) {
          const int s = i % kVectors;
          KeyRows::rebuild(words[i / kVectors] + s * KeyRows::kVectorSize / 2, key_book_,
                           share[i / kVectors], lane() % 4, octet * kVectors + s, pass);
        }
        queries_[kScales ? pass : 0].multiply(products, words, octet);
      }
    }
    Query::take_scores(products, scores);
  }

  VQ_DEVICE void accumulate(const u32 (&loaded)[2][ValueRows::Share::kLoaded],
                            const float (&probabilities)[kQuads]) {
    u32 b[kQuads][2];
    Softmax::spread(b, probabilities);
    u32 share[2][ValueRows::Share::kWords];
    VQ_UNROLL
    for (int i = 0; i < 2; ++i) ValueRows::Share::align(share[i], loaded[i], lane() / 4);
    VQ_UNROLL
    for (int pass = 0; pass < ValueRows::kPasses; ++pass) {
      u32 words[2][ValueRows::kChannels / 2];
      VQ_UNROLL
      for (int s = 0; s < ValueRows::kSubVectors; ++s) {
        VQ_UNROLL
        for (int i = 0; i < 2; ++i) {
          ValueRows::rebuild(words[i] + s * ValueRows::kVectorSize / 2, value_book_, share[i],
                             lane() / 4, s, pass);
        }
      }
      VQ_UNROLL
      for (int j = 0; j < Softmax::kProducts; ++j) {
        softmax_.add(
            j, {words[0][2 * j], words[0][2 * j + 1], words[1][2 * j], words[1][2 * j + 1]}, b);
      }
    }
  }

  // Tokens [begin, end) that are stored raw, all of them sinks or all of the window.
  VQ_DEVICE void attend_raw(int begin, int end) {
    RawQuery query;
    query.load(
        raw_query(), [](int) { return 1.0f; }, [](int) { return 1.0f; });
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

  // Where a raw row begins; tokens past the last repeat it.
  VQ_DEVICE i64 raw_row(int token, int end) const {
    return work_.raw_offset(args_, token < end ? token : end - 1);
  }

  VQ_DEVICE void score_raw(const RawQuery& query, int first, int end,
                           float (&scores)[kTiles][kQuads]) const {
    float products[(kTiles + 1) / 2][RawQuery::kProducts][4] = {};
    VQ_UNROLL
    for (int octet = 0; octet < kOctets; ++octet) {
      u32 words[kTiles][4];
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const int token = Softmax::token_of(first, tile, lane() / 4);
        const u16* row = args_.raw_keys + raw_row(token, end) + lane() % 4 * KeyRows::kChannels;
        const U32x4 four = load_global(reinterpret_cast<const U32x4*>(row + octet * 8));
        words[tile][0] = four.x, words[tile][1] = four.y;
        words[tile][2] = four.z, words[tile][3] = four.w;
      }
      query.multiply(products, words, octet);
    }
    RawQuery::take_scores(products, scores);
  }

  VQ_DEVICE void accumulate_raw(int first, int tile, int end,
                                const float (&probabilities)[kQuads]) {
    u32 b[kQuads][2];
    Softmax::spread(b, probabilities);
    const int token = Softmax::token_of(first, tile, lane() % 4 * 2);
    const u16* values = args_.raw_values + lane() / 4 * ValueRows::kChannels;
    const auto* even = reinterpret_cast<const U32x2*>(values + raw_row(token, end));
    const auto* odd =
        reinterpret_cast<const U32x2*>(values + raw_row(token + Softmax::kJoined, end));
    VQ_UNROLL
    for (int j = 0; j < Softmax::kProducts; ++j) {
      const U32x2 a = load_global(even + j);
      const U32x2 b_words = load_global(odd + j);
      softmax_.add(j, {a.x, a.y, b_words.x, b_words.y}, b);
    }
  }

  const AttentionDecodeArgs& args_;
  const Work work_;
  typename KeyRows::Book key_book_;
  typename ValueRows::Book value_book_;
  Reader reader_;
  Softmax softmax_;
  Query queries_[kQueries];
  float scale_[kQuads];
};

template <class Plan>
VQ_DEVICE void attention_fragments(const AttentionDecodeArgs& args) {
  AttentionFragments<Plan>(args).run();
}

}  // namespace vq
