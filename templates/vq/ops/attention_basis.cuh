// The kernels of attention_decode that change the basis of a cache (layout/basis.h). A block has
// one KV head, whose rotation it reads once, and a share of the query tokens of all sequences.
#pragma once

#include <vq/ops/attention_work.cuh>
#include <vq/ops/basis.cuh>

namespace vq {

// Query token `number` of a sequence, of all that a call may have.
template <class Plan>
struct TokenOfBatch {
  static constexpr int kTokens = Plan::config().query_tokens;
  int batch, number;

  VQ_DEVICE explicit TokenOfBatch(int of_all) : batch(of_all / kTokens), number(of_all % kTokens) {}
};

// The block's rows of query and out, in tiles of kBasisTile: kBasisHeads of a query token beside
// those of the next. A row is head `h` of `heads`, if there are so many.
template <class Plan, int kDim>
class BasisTiles {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kHeadDim = kDim;
  static constexpr int kGroup = group(kConfig);
  static constexpr int kOfToken = ceil_div(kGroup, kBasisHeads);
  static constexpr int kOfTile = kBasisTile / kBasisHeads;

  // `kinds` of rows of a KV head have blocks of their own.
  VQ_DEVICE BasisTiles(const AttentionDecodeArgs& args, int kinds)
      : args_(args), blocks_(blocks_of(args, kinds)) {}
  // Blocks that share the query tokens of a KV head, as add_basis() launches them.
  VQ_DEVICE static int blocks_of(const AttentionDecodeArgs& args, int kinds) {
    return static_cast<int>(
        basis_blocks(kConfig.kv_heads * kinds, i64{args.batch} * kConfig.query_tokens));
  }

  // Heads of a query token, `count` of them; none where there is no such token.
  struct Heads {
    int batch, number;  // the query token
    int first;          // of all query heads
    int count;
    int row;  // of the first among all rows of query and out
  };
  VQ_DEVICE bool has(int tile) const { return token_of(tile * kOfTile).batch < args_.batch; }
  // The heads of row `row` of a tile.
  VQ_DEVICE Heads heads_of(int tile, int row) const {
    const int of_block = tile * kOfTile + row / kBasisHeads;
    const TokenOfBatch<Plan> own = token_of(of_block);
    Heads heads{own.batch, own.number, 0, 0, 0};
    if (heads.batch >= args_.batch) return heads;
    QueryToken<Plan> token;
    int count = 1;
    token.row = heads.batch;
    if constexpr (QueryToken<Plan>::kMost > 1) token.read(args_, own.batch, own.number, 1, count);
    if (count <= 0) return heads;
    const int first = of_block % kOfToken * kBasisHeads;
    heads.first = block_y() * kGroup + first;
    heads.count = kGroup - first < kBasisHeads ? kGroup - first : kBasisHeads;
    heads.row = static_cast<int>(token.row) * kConfig.query_heads + heads.first;
    return heads;
  }
  VQ_DEVICE static int head_of(int row) { return row % kBasisHeads; }

  // Behind the tile's rows in shared memory: where each belongs among all rows of query and out, or
  // -1 if nowhere; and its log-sum-exp.
  VQ_DEVICE static i32* places() { return shared_part<i32>(basis_shared(kHeadDim)); }
  VQ_DEVICE static float* log_sums() {
    return shared_part<float>(basis_shared(kHeadDim) + kBasisTile * 4);
  }
  VQ_DEVICE static void keep_place(const Heads& heads, int row) {
    const int h = head_of(row);
    store_shared(places() + row, h < heads.count ? heads.row + h : -1);
  }

 private:
  VQ_DEVICE TokenOfBatch<Plan> token_of(int heads) const {
    return TokenOfBatch<Plan>(block_z() + heads / kOfToken * blocks_);
  }

  const AttentionDecodeArgs& args_;
  int blocks_;
};

// Kernel attention_to_basis: queries, new keys or new values of one KV head.
template <class Plan, BasisOf kOf>
class AttentionToBasis {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kHeadDim = basis_dim(kConfig, kOf);
  static constexpr int kKinds = basis_kinds(kConfig, kOf);
  static constexpr int kQuery = changes_keys(kConfig, kOf) ? 1 : 0;  // kinds before new rows
  using Tiles = BasisTiles<Plan, kHeadDim>;

  VQ_DEVICE static void run(const AttentionDecodeArgs& args) {
    const int kind = block_x();
    if (kind < kQuery) {
      change_queries(args);
    } else if constexpr (kKinds > kQuery) {
      change_new(args, is_of_values(Plan::config(), kOf, kind - kQuery));
    }
  }

 private:
  VQ_DEVICE static void change_queries(const AttentionDecodeArgs& args) {
    BasisBlock<Plan, kHeadDim, false> block(args, false, block_y());
    after_last_launch();
    const Tiles tiles(args, kKinds);
    for (int tile = 0; tiles.has(tile); ++tile) {
      if (tile > 0) sync_block();  // the tile before is read
      const auto load = [&](int row, int channel) {
        const auto heads = tiles.heads_of(tile, row);
        if (channel == 0) Tiles::keep_place(heads, row);
        const int h = Tiles::head_of(row);
        if (h >= heads.count) return u16{0};
        return load_global(args.given_query + i64{heads.row + h} * kHeadDim + channel);
      };
      const auto to = [&](int row) -> u16* {
        const int place = load_shared(Tiles::places() + row);
        return place < 0 ? nullptr : const_cast<u16*>(args.query) + i64{place} * kHeadDim;
      };
      block.template change<false>(kBasisTile, load, to, tile == 0);
    }
  }

  // A row of each query token that there is.
  VQ_DEVICE static void change_new(const AttentionDecodeArgs& args, bool values) {
    const int head = block_y();
    BasisBlock<Plan, kHeadDim, false> block(args, values, head);
    after_last_launch();
    const u16* const from = values ? args.given_values : args.given_keys;
    if (from == nullptr) return;
    u16* const to = const_cast<u16*>(values ? args.new_values : args.new_keys);
    const int blocks = Tiles::blocks_of(args, kKinds);
    const int tokens = args.batch * kConfig.query_tokens;
    // Where the row of the block's query token `own` is, or -1.
    const auto place = [&](int own) {
      QueryToken<Plan> token;
      int count = 0;
      const TokenOfBatch<Plan> each(block_z() + own * blocks);
      if (each.batch < args.batch) token.read(args, each.batch, each.number, 1, count);
      return count > 0 ? (token.row * kConfig.kv_heads + head) * kHeadDim : i64{-1};
    };
    for (int first = 0; block_z() + first * blocks < tokens; first += kBasisTile) {
      if (first > 0) sync_block();  // the tile before is read
      block.template change<true>(
          kBasisTile,
          [&](int row, int channel) {
            const i64 at = place(first + row);
            return at < 0 ? u16{0} : load_global(from + at + channel);
          },
          [&](int row) -> u16* {
            const i64 at = place(first + row);
            return at < 0 ? nullptr : to + at;
          },
          first == 0);
    }
  }
};
template <class Plan>
VQ_DEVICE void attention_to_basis(const AttentionDecodeArgs& args) {
  AttentionToBasis<Plan, BasisOf::kAll>::run(args);
}
template <class Plan>
VQ_DEVICE void attention_keys_to_basis(const AttentionDecodeArgs& args) {
  AttentionToBasis<Plan, BasisOf::kKeys>::run(args);
}
template <class Plan>
VQ_DEVICE void attention_values_to_basis(const AttentionDecodeArgs& args) {
  AttentionToBasis<Plan, BasisOf::kValues>::run(args);
}

// Kernel attention_from_basis: out and lse of one KV head; merges splits if the plan says so. The
// log-sum-exp moves by q . mean of the keys. Rows without tokens stay all zeros.
template <class Plan>
class AttentionFromBasis {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kHeadDim = kConfig.value_dim;  // of out
  static constexpr int kQueryDim = kConfig.head_dim;
  static constexpr bool kSinkLogits = kConfig.sink_logits;
  static constexpr bool kChanges = !kConfig.value_basis.none() || kSinkLogits;
  static constexpr bool kMerges = merges_out_of_basis(kConfig);
  static constexpr int kWarps = basis_threads(kHeadDim) / 32;
  static constexpr int kOfWarp = ceil_div(kBasisTile, kWarps);  // rows whose log-sum-exp it moves
  using Tiles = BasisTiles<Plan, kHeadDim>;
  using Heads = typename Tiles::Heads;

  VQ_DEVICE explicit AttentionFromBasis(const AttentionDecodeArgs& args)
      : args_(args), tiles_(args, 1) {}

  VQ_DEVICE void run() const {
    BasisBlock<Plan, kHeadDim, true> block(args_, true, block_y());
    after_last_launch();
    for (int tile = 0; tiles_.has(tile); ++tile) {
      if (tile > 0) sync_block();  // the tile before is read
      float shifts[kOfWarp];
      load_shifts(tile, shifts);
      if constexpr (kSinkLogits) keep_sinks(tile, shifts);
      const auto load = [&](int row, int channel) {
        const Heads heads = tiles_.heads_of(tile, row);
        if (channel == 0) Tiles::keep_place(heads, row);
        if constexpr (kMerges) {
          return merged(heads, row, channel);
        } else {
          return stored(heads, row, channel);
        }
      };
      // Splits are merged a sequence at a time, so that the code is there once.
      constexpr int kInFlight = kMerges ? 1 : Tiles::kOfTile;
      const auto to = [&](int row) -> u16* {
        const bool seen = load_shared(Tiles::log_sums() + row) != -infinity();
        return kChanges && seen ? out(load_shared(Tiles::places() + row)) : nullptr;
      };
      block.template change<false, kInFlight>(kBasisTile, load, to, tile == 0, SinkWeight());
      store_log_sums(shifts);
    }
  }

 private:
  VQ_DEVICE u16* out(int row) const { return args_.out + i64{row} * kHeadDim; }

  // The sink logit of each row less what the keys' mean adds to its scores, behind log_sums().
  VQ_DEVICE static float* sinks() { return Tiles::log_sums() + kBasisTile; }
  // What a sink logit leaves of a result.
  struct SinkWeight {
    VQ_DEVICE float operator()(int row) const {
      if constexpr (!kSinkLogits) return 1.0f;
      const float above = load_shared(sinks() + row) - load_shared(Tiles::log_sums() + row);
      return 1.0f / (1.0f + exp2_approx(above * kLog2E));
    }
  };
  // Keeps the warp's sinks. A barrier must follow.
  VQ_DEVICE void keep_sinks(int tile, float (&shifts)[kOfWarp]) const {
    VQ_UNROLL
    for (int i = 0; i < kOfWarp; ++i) {
      const int row = warp() + i * kWarps;
      const float shift = sum_of_lanes(shifts[i]);
      if (row >= kBasisTile || lane() > 0) continue;
      const Heads heads = tiles_.heads_of(tile, row);
      const int h = Tiles::head_of(row);
      const float sink =
          h < heads.count ? load_constant(args_.sink_logits + heads.first + h) : 0.0f;
      store_shared(sinks() + row, sink - shift * args_.softmax_scale);
    }
  }
  // log(exp(a) + exp(b)).
  VQ_DEVICE static float log_add(float a, float b) {
    const float most = larger(a, b);
    if (most == -infinity()) return most;
    const float sum = exp2_approx((a - most) * kLog2E) + exp2_approx((b - most) * kLog2E);
    return most + log2_approx(sum) / kLog2E;
  }
  VQ_DEVICE static float sum_of_lanes(float mine) {
    VQ_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) mine += shuffle_xor(mine, mask);
    return mine;
  }

  // An element of the results that the kernel before has stored; with channel 0 keeps its
  // log-sum-exp.
  VQ_DEVICE u16 stored(const Heads& heads, int row, int channel) const {
    const int h = Tiles::head_of(row);
    const bool real = h < heads.count;
    if (channel == 0) {
      store_shared(Tiles::log_sums() + row,
                   real ? load_global_coherent(args_.lse + heads.row + h) : -infinity());
    }
    return kChanges && real ? load_global_coherent(out(heads.row + h) + channel) : u16{0};
  }
  // Merges the splits of an element; otherwise as stored(). All threads.
  VQ_DEVICE u16 merged(const Heads& heads, int row, int channel) const {
    using Splits = AttentionSplits<Plan>;
    if (heads.count == 0) return stored(heads, row, channel);
    const SequenceSplits<Plan> splits(args_, heads.batch);
    if (splits.count <= 1) return stored(heads, row, channel);
    const int h = Tiles::head_of(row);
    u16 bits = 0;
    float log_sum = -infinity();
    if (h < heads.count) {
      const float* const first =
          Splits::partial(args_, heads.number, heads.first + h, splits.first);
      const auto whole = Splits::template merged<1>(first, splits.count, channel, LoadGlobal());
      bits = Splits::element(whole, 0);
      log_sum = Splits::log_sum_exp(whole.maximum, whole.sum);
      if (whole.sum == 0.0f) store_global(out(heads.row + h) + channel, bits);
    }
    if (channel == 0) store_shared(Tiles::log_sums() + row, log_sum);
    return bits;
  }

  // What this lane has of q . mean of the keys, of each of the warp's rows.
  VQ_DEVICE void load_shifts(int tile, float (&shifts)[kOfWarp]) const {
    VQ_UNROLL
    for (int i = 0; i < kOfWarp; ++i) {
      const int row = warp() + i * kWarps;
      shifts[i] = 0.0f;
      if (!kConfig.key_basis.mean || row >= kBasisTile) continue;
      const Heads heads = tiles_.heads_of(tile, row);
      if (Tiles::head_of(row) >= heads.count) continue;
      const u16* const query = args_.given_query + i64{heads.row + Tiles::head_of(row)} * kQueryDim;
      const float* const mean = args_.key_mean + i64{block_y()} * kQueryDim;
      VQ_UNROLL
      for (int j = 0; j < ceil_div(kQueryDim, 32); ++j) {
        const int c = lane() + 32 * j;
        if (kQueryDim % 32 != 0 && c >= kQueryDim) continue;
        shifts[i] = fused(to_float<kConfig.element>(load_global(query + c)),
                          load_constant(mean + c), shifts[i]);
      }
    }
  }
  VQ_DEVICE void store_log_sums(const float (&shifts)[kOfWarp]) const {
    VQ_UNROLL
    for (int i = 0; i < kOfWarp; ++i) {
      const int row = warp() + i * kWarps;
      const float shift = sum_of_lanes(shifts[i]);
      if (row >= kBasisTile || lane() > 0) continue;
      const int place = load_shared(Tiles::places() + row);
      float log_sum = load_shared(Tiles::log_sums() + row);
      if (place < 0) continue;
      if constexpr (kSinkLogits) log_sum = log_add(log_sum, load_shared(sinks() + row));
      store_global(args_.lse + place,
                   log_sum == -infinity() ? log_sum : log_sum + shift * args_.softmax_scale);
    }
  }

  const AttentionDecodeArgs& args_;
  Tiles tiles_;
};
template <class Plan>
VQ_DEVICE void attention_from_basis(const AttentionDecodeArgs& args) {
  AttentionFromBasis<Plan>(args).run();
}

}  // namespace vq
