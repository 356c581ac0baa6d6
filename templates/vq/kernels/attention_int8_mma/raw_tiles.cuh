// Full-precision tokens in int8_mma attention: sinks and recent tokens as 16-bit elements, in tiles
// of kRawTile tokens that all warps of all splits share.
//
//   path    a warp reads its tiles after its codes, through its parts of the first two rounds
//           (code_rounds.cuh): keys in one, values in the other. Rows 0 to 3 replace key codes,
//           the others value codes; row r has its 16-byte piece p at p ^ r (or p ^ r % 4), against
//           bank conflicts
//   scores  lane (g, c) has channels [c s / 4, ..) of token g, where s is query_span()
//           (query_fragments.cuh)
//   values  lane (g, c) has channels [g s / 8, ..) of tokens 2c and 2c + 1: a has two of its
//           channels as rows g and g + 8, b head n / 2 and part n % 2 of a probability, which is
//           the sum of two 16-bit numbers
//
// Sums stay in fp32, apart from the codes' sums, until the warps' parts merge.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_int8_mma/plan.h>
#include <vq/kernels/attention_int8_mma/token_ends.cuh>
#include <vq/loads.cuh>
#include <vq/ops/query_fragments.cuh>

namespace vq {

// Tokens [0, sinks) and [recent_tokens, end) of a sequence.
struct RawTokens {
  int sinks, recent_tokens, end;
  int cached, fresh;         // with several query tokens: QueryToken's
  int split, splits, batch;  // of a block with several pieces: AttentionPiece's
  int start;                 // where not all are seen: the first that is; sinks may be before it

  VQ_DEVICE int sink_tiles() const { return ceil_div(sinks, kRawTile); }
  VQ_DEVICE int tiles() const { return sink_tiles() + ceil_div(end - recent_tokens, kRawTile); }
  // A tile's first token, and the end of the tokens of its kind.
  VQ_DEVICE int first(int tile) const {
    const int before = sink_tiles();
    return tile < before ? tile * kRawTile : recent_tokens + (tile - before) * kRawTile;
  }
  VQ_DEVICE int end_of(int tile) const { return tile < sink_tiles() ? sinks : end; }
};

template <class Plan>
class RawTiles {
 public:
  using Work = AttentionWork<Plan>;
  using Slots = RawSlots<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr AttentionInt8MmaShared kAt = bytes_layout(kConfig);
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kQuads = quad_heads(kConfig) / 4;
  static constexpr int kChannels = query_span(kConfig.value_dim) / 8;  // of values per lane
  static constexpr float kLowest = -1.0e30f;  // below all scores, and finite
  using Query = QueryFragments<Plan, 1, kConfig.element>;
  using Ends = TokenEnds<Plan>;
  static constexpr bool kFresh = kConfig.query_tokens > 1;  // tokens may come with the query
  static constexpr bool kBalanced = balanced(kConfig);
  static constexpr bool kSeesPart = sees_part(kConfig);

  // The raw tokens of `work`'s sequence that any query token of the block reads.
  VQ_DEVICE static RawTokens tokens_of(const Work& work) {
    RawTokens tokens = {};
    tokens.end = kFresh && work.seen < 0 ? 0 : work.seen;
    tokens.sinks = Slots::least(work.raw.sinks, tokens.end);
    const int recent_tokens = Slots::least(work.raw_begin(), tokens.end);
    tokens.recent_tokens = recent_tokens > tokens.sinks ? recent_tokens : tokens.sinks;
    if constexpr (kSeesPart) {
      tokens.start = Slots::least(work.start, tokens.end);
      if (tokens.start >= tokens.sinks) tokens.sinks = 0;
      if (tokens.start > tokens.recent_tokens) tokens.recent_tokens = tokens.start;
    }
    if constexpr (kFresh) {
      tokens.cached = work.token.cached;
      tokens.fresh = static_cast<int>(work.token.fresh);
    }
    tokens.split = work.split;
    tokens.splits = work.splits;
    tokens.batch = work.batch;
    return tokens;
  }
  // The block's, by way of shared memory: one thread keeps them, before a barrier.
  VQ_DEVICE static void keep(const RawTokens& tokens) {
    store_shared(kept(), tokens.sinks);
    store_shared(kept() + 1, tokens.recent_tokens);
    store_shared(kept() + 2, tokens.end);
    if constexpr (kFresh) {
      store_shared(kept() + 3, tokens.cached);
      store_shared(kept() + 4, tokens.fresh);
    }
    if constexpr (kBalanced) {
      store_shared(kept() + 5, tokens.split);
      store_shared(kept() + 6, tokens.splits);
      store_shared(kept() + 7, tokens.batch);
    }
    if constexpr (kSeesPart) store_shared(kept() + 8, tokens.start);
  }
  VQ_DEVICE static RawTokens tokens() {
    const auto kept_if = [](bool kept_so, int i) { return kept_so ? load_shared(kept() + i) : 0; };
    return {load_shared(kept()),   load_shared(kept() + 1), load_shared(kept() + 2),
            kept_if(kFresh, 3),    kept_if(kFresh, 4),      kept_if(kBalanced, 5),
            kept_if(kBalanced, 6), kept_if(kBalanced, 7),   kept_if(kSeesPart, 8)};
  }
  VQ_DEVICE static u32* words() { return shared_part<u32>(kAt.raw_words); }

  // True if this warp has a tile in turn number `turn`.
  VQ_DEVICE static bool has(const RawTokens& tokens, int turn) {
    return tile_of(tokens, turn) < tokens.tiles();
  }

  // Prefetches the rows of the warp's first tile to L2. All lanes of a warp.
  VQ_DEVICE static void prefetch(const AttentionDecodeArgs& args, const RawTokens& tokens) {
    const auto key = [&](bool fresh, i64 element) {
      prefetch_global((fresh ? args.new_keys : args.raw_keys) + element);
    };
    const auto value = [&](bool fresh, i64 element) {
      prefetch_global((fresh ? args.new_values : args.raw_values) + element);
    };
    for_each_piece<false>(args, tokens, 0, [&](bool fresh, i64 element, int, int) {
      key(fresh, element);
      if constexpr (!rows_differ(kConfig)) value(fresh, element);
    });
    if constexpr (rows_differ(kConfig)) {
      for_each_piece<true>(args, tokens, 0,
                           [&](bool fresh, i64 element, int, int) { value(fresh, element); });
    }
  }
  // Starts copying a turn's keys, or its values over ones already read, as one copy group each, if
  // the warp has a tile. await() waits for the groups in order. All lanes of a warp.
  VQ_DEVICE static void ask_keys(const AttentionDecodeArgs& args, const RawTokens& tokens,
                                 int turn) {
    ask<false>(args, args.raw_keys, args.new_keys, tokens, turn);
  }
  VQ_DEVICE static void ask_values(const AttentionDecodeArgs& args, const RawTokens& tokens,
                                   int turn) {
    ask<true>(args, args.raw_values, args.new_values, tokens, turn);
  }
  VQ_DEVICE static void await() {
    copy_async_wait<1>();
    sync_warp();
  }

  // The block's query as it came, which prepare() of Query has stored.
  VQ_DEVICE void begin() {
    query_.load(words());
    if constexpr (Ends::kSeveral) ends_.load();
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      maximum_[quad] = kLowest;
      sum_[quad] = 0.0f;
      VQ_UNROLL
      for (int i = 0; i < kChannels; ++i) output_[quad][i] = 0.0f;
    }
  }

  // Computes scores from a turn's keys, which have arrived; `scale` makes them units of log2.
  VQ_DEVICE void take_keys(const AttentionDecodeArgs& args, int turn, const RawTokens& tokens,
                           float scale) {
    const int tile = tile_of(tokens, turn);
    float products[1][Query::kProducts][4] = {};
    VQ_UNROLL
    for (int octet = 0; octet < Query::kOctets; ++octet) {
      u32 words[1][4];
      load_piece<false, 4>(words[0], lane_group(),
                           place_in_group() * (Rows<false>::kPlaces / 4) + octet);
      typename Query::Octet query_octet;
      query_.read(query_octet, octet);
      query_.multiply(products, words, query_octet);
    }
    float scores[1][kQuads];
    Query::take_scores(products, scores);
    const int token = tokens.first(tile) + lane_group();
    const bool is_any = token < tokens.end_of(tile) && (!kSeesPart || token >= tokens.start);
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      bool counts = is_any;
      if constexpr (Ends::kSeveral) {
        const bool raw = tile < tokens.sink_tiles() || token >= ends_.codes(quad);
        counts = counts && raw && token < ends_.seen(quad);
        if constexpr (kSeesPart) counts = counts && token >= ends_.begin(quad);
        counts = counts && ends_.is_on_path(quad, token, tokens.cached);
      }
      const float score = counts ? soft_capped<Plan>(args, scores[0][quad] * scale) : -infinity();
      float highest = larger(maximum_[quad], score);
      VQ_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) {
        highest = larger(highest, shuffle_xor(highest, mask));
      }
      const float factor = exp2_approx(maximum_[quad] - highest);
      maximum_[quad] = highest;
      const float p = exp2_approx(score - highest);
      sum_[quad] = fused(sum_[quad], factor, p);
      VQ_UNROLL
      for (int i = 0; i < kChannels; ++i) output_[quad][i] *= factor;
      const u16 high = from_float<kConfig.element>(p);
      const float left = p - to_float<kConfig.element>(high);
      const u32 parts = u32{high} | u32{from_float<kConfig.element>(left)} << 16;
      weights_[quad] = movmatrix_trans(parts);
    }
  }
  // Adds the turn's values, which have arrived. Call it after take_keys().
  VQ_DEVICE void add_values() {
    u32 words[2][kChannels / 2];
    constexpr int kWords = kChannels % 8 == 0 ? 4 : 2;  // of a load
    VQ_UNROLL
    for (int i = 0; i < kChannels / kWords; ++i) {
      const int part = i / 2;
      load_piece<true, kWords>(words[i % 2] + part * kWords, 2 * place_in_group() + i % 2,
                               lane_group() * (kChannels / 2 / kWords) + part);
    }
    VQ_UNROLL
    for (int w = 0; w < kChannels / 2; ++w) {
      const u32 a[4] = {byte_permute(words[0][w], words[1][w], 0x5410u),
                        byte_permute(words[0][w], words[1][w], 0x7632u), 0u, 0u};
      VQ_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        const u32 b[2] = {weights_[quad], 0u};
        float sums[4] = {};
        mma_m16n8k16<kConfig.element>(sums, a, b);
        output_[quad][2 * w] += sums[0] + sums[1];
        output_[quad][2 * w + 1] += sums[2] + sums[3];
      }
    }
  }

  // For head c of a quad, in lane (g, c): the largest score (kLowest without tokens), this lane's
  // sum of powers relative to it, and the weighted value of this lane's channel i.
  VQ_DEVICE float maximum(int quad) const { return maximum_[quad]; }
  VQ_DEVICE float sum(int quad) const { return sum_[quad]; }
  VQ_DEVICE float output(int quad, int i) const { return output_[quad][i]; }

 private:
  static constexpr int kHalf = kRawTile / 2;  // contiguous rows
  static constexpr int kKeyStep = step_bytes(kConfig, false);
  static constexpr int kValueStep = step_bytes(kConfig, true);

  // The rows of keys, or of values.
  template <bool kValues>
  struct Rows : RawRows<Plan, kValues> {
    static constexpr int kSpan = query_span(row_dim(kConfig, kValues));
    static constexpr int kPieces = row_dim(kConfig, kValues) / 8;  // 16-byte pieces per row,
    static constexpr int kPlaces = kSpan / 8;                      // and places for them
    // Offset of the round that they use.
    static constexpr int kRound = kValues ? static_cast<int>(round_bytes(kConfig)) : 0;
    static_assert(kHalf * kSpan * 2 <= kKeyStep && kHalf * kSpan * 2 <= kValueStep, "");
  };

  VQ_DEVICE static int* kept() { return shared_part<int>(kAt.raw_tokens); }
  VQ_DEVICE static int tile_of(const RawTokens& tokens, int turn) {
    const int number = warp() + kWarps * turn;
    if constexpr (kBalanced) return tokens.split + tokens.splits * number;
    return block_x() + kConfig.splits * number;
  }
  // Calls each(fresh, element, row, piece) for this lane's pieces of a turn's rows; a piece begins
  // at that element of raw keys or values, or of fresh ones.
  template <bool kValues, class Each>
  VQ_DEVICE static void for_each_piece(const AttentionDecodeArgs& args, const RawTokens& tokens,
                                       int turn, Each each) {
    constexpr int kPieces = Rows<kValues>::kPieces;
    if (!has(tokens, turn)) return;
    const int kv_head = Work::place_of_block().kv_head;
    const int sequence = kBalanced ? tokens.batch : block_z();
    const int first = tokens.first(tile_of(tokens, turn));
    const int last = tokens.end_of(tile_of(tokens, turn)) - 1;
    VQ_UNROLL
    for (int i = 0; i < ceil_div(kRawTile * kPieces, 32); ++i) {
      const int row = (i * 32 + lane()) / kPieces;
      if (kRawTile * kPieces % 32 != 0 && row >= kRawTile) continue;
      const int piece = (i * 32 + lane()) % kPieces;
      const int token = first + row < last ? first + row : last;  // rows past the last repeat it
      if constexpr (kFresh) {
        if (token >= tokens.cached) {
          const i64 of_head = (i64{tokens.fresh} + token) * kConfig.kv_heads + kv_head;
          each(true, of_head * Rows<kValues>::kDim + piece * 8, row, piece);
          continue;
        }
      }
      each(false, Rows<kValues>::at(args, sequence, kv_head, token, tokens.sinks) + piece * 8, row,
           piece);
    }
  }
  template <bool kValues>
  VQ_DEVICE static void ask(const AttentionDecodeArgs& args, const u16* slots, const u16* fresh,
                            const RawTokens& tokens, int turn) {
    u8* const to = shared_part<u8>(kAt.rounds) + Rows<kValues>::kRound;
    if (has(tokens, turn)) {  // lanes have read what was there
      sync_warp();
    }
    for_each_piece<kValues>(
        args, tokens, turn, [&](bool is_fresh, i64 element, int row, int piece) {
          copy_async(reinterpret_cast<U32x4*>(to + at<kValues>(row, piece)),
                     reinterpret_cast<const U32x4*>((is_fresh ? fresh : slots) + element));
        });
    copy_async_commit();
  }
  // Bytes from where a round begins to a piece of a row of this warp's.
  template <bool kValues>
  VQ_DEVICE static int at(int row, int piece) {
    const int of_warp = kKeyStep == kValueStep || row / kHalf == 0 ? kKeyStep : kValueStep;
    const int of_half = row / kHalf * (kWarps * kKeyStep) + warp() * of_warp;
    constexpr int kPlaces = Rows<kValues>::kPlaces;
    const int turned = kPlaces % 8 == 0 ? row : row % 4;  // stays within the row
    return of_half + row % kHalf * (Rows<kValues>::kSpan * 2) + (piece ^ turned) * 16;
  }
  // Loads part `part` of kWords words of a row: a piece or half of one, zeros past the row's end.
  template <bool kValues, int kWords>
  VQ_DEVICE static void load_piece(u32* to, int row, int part) {
    const int piece = part * kWords / 4;
    if (Rows<kValues>::kPieces < Rows<kValues>::kPlaces && piece >= Rows<kValues>::kPieces) {
      VQ_UNROLL
      for (int i = 0; i < kWords; ++i) to[i] = 0;
      return;
    }
    const u8* const from =
        shared_part<u8>(kAt.rounds) + Rows<kValues>::kRound + at<kValues>(row, piece);
    load_words<kWords>(to, reinterpret_cast<const u32*>(from) + part * kWords % 4, LoadShared());
  }

  Query query_;
  Ends ends_;
  float maximum_[kQuads];  // equal in all lanes that have the head
  float sum_[kQuads];
  float output_[kQuads][kChannels];
  u32 weights_[kQuads];  // weights of the tile whose keys were taken
};

// Stands in for RawTiles if no token is raw.
struct NoRawTiles {};

}  // namespace vq
