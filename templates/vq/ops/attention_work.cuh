// What one block of attention_decode reads and where it writes its result, and the kernel that
// merges splits.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/layout/attention.h>
#include <vq/ops/attention_pieces.cuh>
#include <vq/ops/attention_splits.cuh>
#include <vq/tokens/cached_rows.cuh>

namespace vq {

// Factor that turns q.k into a score in units of log2: the softmax uses exp2.
VQ_DEVICE float score_scale(const AttentionDecodeArgs& args) { return args.softmax_scale * kLog2E; }

// Bounded scores (Gemma 2, sec. 2): c tanh(s / c) = c - 2 c / (1 + exp(2 s / c)). All go without
// their first c, which no softmax feels; AttentionWork adds it to the maximum that it writes.
template <class Plan>
VQ_DEVICE float soft_capped(const AttentionDecodeArgs& args, float score) {
  if constexpr (!Plan::config().softcaps) return score;
  return args.softcap_span * reciprocal_approx(1.0f + exp2_approx(score * args.softcap_rate));
}
// Changes the products of a step, where scores are bounded, so that `scores` times them are scores;
// without a bound that is `scale`.
template <class Plan, int kTiles, int kQuads>
VQ_DEVICE void soft_cap(const AttentionDecodeArgs& args, float (&products)[kTiles][kQuads],
                        const float (&scale)[kQuads], float (&scores)[kQuads]) {
  VQ_UNROLL
  for (int quad = 0; quad < kQuads; ++quad) {
    scores[quad] = Plan::config().softcaps ? args.softcap_span : scale[quad];
    if constexpr (!Plan::config().softcaps) continue;
    const float rate = scale[quad] * args.softcap_rate;
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      float& each = products[tile][quad];
      each = reciprocal_approx(1.0f + exp2_approx(each * rate));
    }
  }
}

// One query token of a sequence. Where there is but one, its row is the sequence.
template <class Plan>
struct QueryToken {
  static constexpr int kMost = Plan::config().query_tokens;
  i64 row;     // row of query, out and lse
  int cached;  // first visible token that comes from new_keys and new_values
  i64 fresh;   // row of these less token

  // Slots number all query tokens that a call may have.
  VQ_DEVICE static i64 slot(int batch, int number) { return i64{batch} * kMost + number; }

  // Returns how many tokens the last of at most `most` query tokens from `number` on sees, and sets
  // `count` to the number of query tokens; if `count` <= 0 the block writes nothing. Call it before
  // the other functions.
  VQ_DEVICE int read(const AttentionDecodeArgs& args, int batch, int number, int most, int& count) {
    if constexpr (kMost == 1) return length_within(args, batch);
    const int first = load_global(args.query_start + batch);
    const int behind = load_global(args.query_start + batch + 1);
    // Rows that descend, or that `out` has not by the last of all, are nobody's.
    const bool real =
        first >= 0 && first < behind && behind <= load_global(args.query_start + args.batch);
    const int given = real ? behind - first : 0;
    const int all = given < kMost ? given : kMost;
    count = all - number < most ? all - number : most;
    const bool appended = args.new_keys == nullptr;
    const int length = length_within(args, batch, appended ? 0 : all);
    const int newest = length + number + count - (appended ? all : 0);
    const int seen = Plan::config().shared_prefix ? length : newest;
    row = i64{first} + number;
    fresh = i64{first} - length;
    cached = appended ? seen : length;
    return seen;
  }
};

// What a block keeps of a tree of drafts.
struct DraftMasks {
  const u32* masks;  // of the block's first query token and those behind it
  u64 own_path;      // of a block with one query token
};
struct NoDraftMasks {};

// Tokens [begin, end) of the sequence that the last of the block's query tokens sees, and its query
// heads: `heads` real ones from `first_head` on. With several query tokens each token's heads are
// contiguous.
template <class Plan>
struct AttentionWork : Either<Plan::config().tree_mask, DraftMasks, NoDraftMasks> {
  static constexpr int kHeadDim = Plan::config().value_dim;  // of out
  static constexpr int kGroup = group(Plan::config());
  static constexpr int kHeads = Plan::config().heads_per_block;
  static constexpr int kHeadBlocks = head_blocks(Plan::config());
  static constexpr int kTokenBlocks = token_blocks(Plan::config());
  static constexpr int kTokens = block_tokens(Plan::config());
  static constexpr int kTile = token_tile(Plan::config());
  static constexpr int kSplits = Plan::config().splits;
  static constexpr int kQueryTokens = Plan::config().query_tokens;
  static constexpr int kThreads = Plan::config().threads;
  using Splits = AttentionSplits<Plan>;
  using Raw = RawSlots<Plan>;
  static constexpr bool kRawApart = raw_apart(Plan::config());
  static constexpr bool kSeesPart = sees_part(Plan::config());
  static constexpr bool kTree = Plan::config().tree_mask;
  static constexpr bool kShared = Plan::config().shared_prefix;

  int batch, split, splits, slot;  // split of the sequence's `splits`; slot in the partials
  int kv_head, first_head, heads;
  int number;               // first query token
  int behind;               // query tokens of the block behind that one
  int seen, recent_tokens;  // tokens that the last one sees; from where on it reads its own window.
                            // The first where raw tokens are shared out apart, too
  int begin, end;           // whole tiles, from the tile on in which `start` is
  int start, common_start;  // first token that any query token of the block sees; that all see
  typename Raw::Tokens raw;
  QueryToken<Plan> token;

  // Calls use(work) where the block has any.
  template <class Use>
  VQ_DEVICE static void of_block(const AttentionDecodeArgs& args, int shares, Use use) {
    AttentionWork work = place_of_block(shares);
    if (!work.read_lengths(args)) return;
    use(work);
  }

  // The fields that follow from the block index alone. `shares` blocks per heads and split are
  // contiguous along grid y.
  VQ_DEVICE static AttentionWork place_of_block(int shares = 1) {
    AttentionWork work;
    const int block = block_y() / shares;
    work.kv_head = block / kHeadBlocks;
    work.number = kQueryTokens > 1 ? block % kHeadBlocks / kTokenBlocks * kTokens : 0;
    const int in_group = block % kTokenBlocks * kHeads;
    work.first_head = work.kv_head * kGroup + in_group;
    work.heads = kGroup - in_group < kHeads ? kGroup - in_group : kHeads;  // per query token
    return work;
  }
  // The rest; false where the sequence has no such query token, and there is nothing to do. Every
  // split takes a whole number of tiles.
  VQ_DEVICE bool read_lengths(const AttentionDecodeArgs& args) {
    batch = block_z();
    split = block_x();
    splits = kSplits;
    slot = split + kSplits * batch;
    const bool any = read_tokens(args, [&](int length) {
      if constexpr (kRawApart) {
        seen = length;
      } else {
        take_share(args, start / kTile * kTile, length);
      }
    });
    if constexpr (kRawApart) {
      const int codes = end_of_codes();
      const int from = raw.sinks > start ? raw.sinks : start;
      take_share(args, clip(from, codes) / kTile * kTile, codes);
    }
    return any;
  }
  // read() for a piece.
  VQ_DEVICE bool take(const AttentionDecodeArgs& args, const AttentionPiece& piece) {
    batch = piece.batch;
    split = piece.split;
    splits = piece.count;
    slot = piece.slot;
    const auto take_turns = [&](int length) {
      constexpr i64 kTurn = AttentionPieces<Plan>::kTurn;
      begin = clip((i64{piece.skipped} + piece.begin) * kTurn, length);
      end = clip((i64{piece.skipped} + piece.end) * kTurn, length);
    };
    const bool any = read_tokens(args, [&](int length) {
      if constexpr (kRawApart) {
        seen = length;
      } else {
        take_turns(length);
      }
    });
    if constexpr (kRawApart) take_turns(end_of_codes());
    return any;
  }
  // Guess of the split's first token, before the wait for the previous launch, which may still
  // write the length. The result may be another split's, but is within the sequence's capacity.
  VQ_DEVICE i64 begin_by_hint(const AttentionDecodeArgs& args) const {
    if constexpr (kSplits == 1) return 0;
    int length = load_hint(args.lengths + block_z());
    if constexpr (kRawApart && Raw::kMaxRecentTokens > 0) {
      const i64 codes = i64{length} - load_hint(args.recent_counts + block_z());
      length = codes < length ? static_cast<int>(codes > 0 ? codes : 0) : length;
    }
    const int from = first_seen<Plan>(length) / kTile * kTile;
    const i64 first = from + block_x() * share_of_split(args, length > from ? length - from : 0);
    return first < args.capacity ? first : args.capacity;
  }

  // Ends of the tokens that a query token of the block reads from codes, and of those it sees.
  VQ_DEVICE int codes_end(int query_token) const {
    if constexpr (kTokens == 1) return raw.recent_tokens;
    if constexpr (kTree) return codes_end_at(path_end(query_token));
    if constexpr (kShared) return token.cached;
    const int own = Raw::least(recent_tokens - behind + query_token, token.cached);
    if constexpr (Raw::kTogether == 1) return own;
    return Raw::codes_end(own, Raw::least(seen_end(query_token), token.cached));
  }
  // The least of codes_end() of all the block's query tokens, or less.
  VQ_DEVICE int least_codes_end() const {
    if constexpr (kTree && kTokens > 1) return codes_end_at(token.cached + 1);
    return codes_end(0);
  }
  VQ_DEVICE int seen_end(int query_token) const {
    if constexpr (kTokens == 1 && !kTree) return end;
    if constexpr (kShared) return seen;
    return seen - behind + query_token;
  }
  // The first token that a query token of the block sees.
  VQ_DEVICE int seen_begin(int query_token) const {
    if constexpr (!kSeesPart) return 0;
    if constexpr (kTokens == 1) return start;
    return first_seen<Plan>(path_end(query_token));
  }
  // With a tree of drafts: which of them a query token of the block sees, from bit 0 on, the first
  // that the cache lacks. Query tokens that the block lacks have the path of its last one.
  VQ_DEVICE u64 path(int query_token) const {
    if constexpr (kTokens == 1) return this->own_path;
    return masked_path(query_token);
  }
  // path() is read from memory: its own bit counts as set and those behind it as clear.
  VQ_DEVICE u64 masked_path(int query_token) const {
    const int held = query_token < behind ? query_token : behind;
    const u64 high = load_global(this->masks + 2 * held + 1);
    const u64 own = u64{1} << (number + held);
    return ((high << 32 | load_global(this->masks + 2 * held)) & (own - 1)) | own;
  }
  // True unless `token`, before seen_end(), is a draft that the query token does not see.
  VQ_DEVICE bool is_on_path(int query_token, int token) const {
    if constexpr (kTree) {
      return is_on(path(query_token), token - this->token.cached);
    } else {
      return true;
    }
  }
  // True unless `draft`, a number or negative, is one that this path lacks.
  VQ_DEVICE static bool is_on(u64 path, int draft) {
    return draft < 0 || (path >> draft % 64 & 1) != 0;
  }
  // How many tokens a query token would see alone, its own the last. With a tree, drafts off its
  // path do not count.
  VQ_DEVICE int path_end(int query_token) const {
    if constexpr (kTree) return token.cached + ones_of(path(query_token));
    return seen_end(query_token);
  }
  // The first token that any reads raw and that is no sink; `end` or more where there is none.
  VQ_DEVICE int raw_begin() const {
    return kTokens > 1 && (Raw::kTogether > 1 || raw.recent_tokens < seen) ? least_codes_end()
                                                                           : raw.recent_tokens;
  }

  VQ_DEVICE bool is_raw(int position) const {
    if constexpr (kQueryTokens > 1) return position < raw.sinks || position >= raw.recent_tokens;
    return raw.holds(position);
  }
  // The row of its first query token in `query`.
  VQ_DEVICE i64 query_row() const {
    if constexpr (kQueryTokens == 1) return batch;
    return token.row;
  }
  // Heads from the block's first to its head h, in query, out and partials.
  VQ_DEVICE static int heads_to(int h) {
    if constexpr (kTokens == 1) return h;
    return h / kGroup * Plan::config().query_heads + h % kGroup;
  }

  // How many of `count` tokens from `first` on have codes in the cache.
  VQ_DEVICE int cached(int first, int count) const {
    if constexpr (kQueryTokens == 1) return count;
    return Raw::least(token.cached - first, count);
  }

  // The row of a raw token, from element `skipped` on: of the cache's slots, or of what came with
  // the query.
  VQ_DEVICE const u16* raw_key(const AttentionDecodeArgs& args, int position,
                               int first_channel = 0) const {
    return raw_row<false>(args, args.raw_keys, args.new_keys, position, first_channel);
  }
  VQ_DEVICE const u16* raw_value(const AttentionDecodeArgs& args, int position,
                                 int first_channel = 0) const {
    return raw_row<true>(args, args.raw_values, args.new_values, position, first_channel);
  }

  // One split: the normalised result. More: the split's partial, for the combine kernel or the last
  // block. The block has share number `share`, of kChannels channels. output [heads][kChannels],
  // maximum and sum [heads], shared memory, written before a barrier. All threads.
  template <int kChannels>
  VQ_DEVICE void write(const AttentionDecodeArgs& args, int share, const float* output,
                       const float* maximum, const float* sum) const {
    for (int i = thread_index(); i < heads * kChannels; i += kThreads) {
      const int h = i / kChannels;
      write_one(args, h, share * kChannels + i % kChannels, load_shared(output + i),
                load_shared(maximum + h), load_shared(sum + h));
    }
    merge_if_last(args);
  }

  // One channel of the block's head h, which is one of `heads`. The maximum counts with channel 0.
  // merge_if_last() has to follow once all have been written.
  VQ_DEVICE void write_one(const AttentionDecodeArgs& args, int h, int channel, float value,
                           float maximum, float sum) const {
    maximum = of_whole_scores(args, maximum);
    if (is_whole()) {
      const i64 row_index = first() + heads_to(h);
      const float weight = Splits::add_sink(args, row_index, maximum, sum);
      store_global(args.out + row_index * kHeadDim + channel,
                   from_float<Plan::config().element>(sum == 0.0f ? 0.0f : value * weight / sum));
      if (channel == 0) store_global(args.lse + row_index, Splits::log_sum_exp(maximum, sum));
    } else {
      float* const partial = Splits::partial(args, number, first_head + heads_to(h), slot);
      store_global(partial + channel, value);
      if (channel == 0) {
        store_global(partial + kHeadDim, maximum);
        store_global(partial + kHeadDim + 1, sum);
      }
    }
  }

  // A maximum with what soft_capped() leaves out.
  VQ_DEVICE static float of_whole_scores(const AttentionDecodeArgs& args, float maximum) {
    if constexpr (!Plan::config().softcaps) return maximum;
    return maximum - 0.5f * args.softcap_span;
  }

  // Stores both in one access if `out` is aligned for it; callers need not align it.
  VQ_DEVICE static void store_pair(u16* to, u32 pair) {
    if (reinterpret_cast<u64>(to) % sizeof(u32) == 0) {
      store_global(reinterpret_cast<u32*>(to), pair);
    } else {
      store_global(to, static_cast<u16>(pair & 0xffffu));
      store_global(to + 1, static_cast<u16>(pair >> 16));
    }
  }

  // write() for channels `channel`, an even one, and `channel` + 1.
  VQ_DEVICE void write_two(const AttentionDecodeArgs& args, int h, int channel, float even,
                           float odd, float maximum, float sum) const {
    maximum = of_whole_scores(args, maximum);
    if (is_whole()) {
      const i64 row_index = first() + heads_to(h);
      const float weight = Splits::add_sink(args, row_index, maximum, sum);
      const bool empty = sum == 0.0f;
      store_pair(args.out + row_index * kHeadDim + channel,
                 pack2<Plan::config().element>(empty ? 0.0f : even * weight / sum,
                                               empty ? 0.0f : odd * weight / sum));
      if (channel == 0) store_global(args.lse + row_index, Splits::log_sum_exp(maximum, sum));
    } else {
      float* const partial = Splits::partial(args, number, first_head + heads_to(h), slot);
      store_global(reinterpret_cast<U32x2*>(partial + channel),
                   U32x2{float_bits(even), float_bits(odd)});
      if (channel == 0) {
        store_global(partial + kHeadDim, maximum);
        store_global(partial + kHeadDim + 1, sum);
      }
    }
  }

  // Blocks that share the sequence's tokens; whether this one has them all.
  VQ_DEVICE int sharing() const { return balanced(Plan::config()) ? splits : kSplits; }
  VQ_DEVICE bool is_whole() const { return sharing() == 1; }

  // Merges the splits in the last block that shares these heads, if the plan says so. It overwrites
  // the word at `shared`. All threads.
  VQ_DEVICE void merge_if_last(const AttentionDecodeArgs& args, i64 shared = 0) const {
    if constexpr (Plan::config().combine == Combine::last_block) {
      constexpr int kOfBatch = Plan::config().kv_heads * kHeadBlocks;
      if (is_whole()) return;
      u32* const counter = args.counters + i64{batch} * kOfBatch + block_y();
      if (!is_last_of(sharing(), counter, shared)) return;
      // Two channels per thread overlap their loads.
      constexpr int kChannels = balanced(Plan::config()) ? 2 : 1;
      for (int i = thread_index() * kChannels; i < heads * kHeadDim; i += kThreads * kChannels) {
        const int head = heads_to(i / kHeadDim);
        const float* const from = Splits::partial(args, number, first_head + head, slot - split);
        Splits::write(
            args,
            Splits::template merged<kChannels>(from, splits, i % kHeadDim, LoadOfThisLaunch()),
            first() + head, i % kHeadDim);
      }
    }
  }

 private:
  // The block's first head among all heads of out.
  VQ_DEVICE i64 first() const { return query_row() * Plan::config().query_heads + first_head; }
  template <bool kValues>
  VQ_DEVICE const u16* raw_row(const AttentionDecodeArgs& args, const u16* slots, const u16* fresh,
                               int position, int first_channel) const {
    using Rows = RawRows<Plan, kValues>;
    if constexpr (kQueryTokens > 1) {
      if (position >= token.cached) {
        const i64 row = (token.fresh + position) * Plan::config().kv_heads + kv_head;
        return fresh + row * Rows::kDim + first_channel;
      }
    }
    return slots + first_channel + Rows::at(args, batch, kv_head, position, raw.sinks);
  }
  // Reads the sequence's state from memory; set_range(length) sets the split's tokens.
  template <class SetRange>
  VQ_DEVICE bool read_tokens(const AttentionDecodeArgs& args, SetRange set_range) {
    int count = 1;
    const int last = token.read(args, batch, number, kTokens, count);
    if (kQueryTokens > 1 && count <= 0) return false;
    const int length = kQueryTokens == 1 || last > 0 ? last : 0;
    if constexpr (kTree) return read_drafts(args, last, count, set_range);
    common_start = first_seen<Plan>(length);
    start = kTokens > 1 ? first_seen<Plan>(last - count + 1) : common_start;
    set_range(length);
    raw = Raw::counted(args, batch, length);
    if constexpr (kTokens > 1) {
      behind = count - 1;
      heads = count * kGroup;
      seen = last;
      recent_tokens = raw.recent_tokens + last - length;
    }
    raw.end_with_codes(length);
    if constexpr (kQueryTokens > 1) {
      if (token.cached < raw.recent_tokens) raw.recent_tokens = token.cached;
      raw.end_with_codes(token.cached);
    }
    return true;
  }
  // The block reads `count` drafts in a tree, the last of which would see the tokens before `last`
  // in a chain.
  template <class SetRange>
  VQ_DEVICE bool read_drafts(const AttentionDecodeArgs& args, int last, int count,
                             SetRange set_range) {
    behind = count - 1;
    this->masks = args.tree_mask + 2 * token.row;
    if constexpr (kTokens == 1) this->own_path = masked_path(0);
    const int most = kTokens == 1 ? path_end(0) : last;  // that any would see alone, or more
    common_start = first_seen<Plan>(most);
    start = kTokens == 1 ? common_start : first_seen<Plan>(token.cached + 1);
    set_range(last);
    seen = last;
    raw = Raw::counted(args, batch, most);
    recent_tokens = raw.recent_tokens;
    if constexpr (kTokens > 1) heads = count * kGroup;
    raw.end_with_codes(most);
    if (token.cached < raw.recent_tokens) raw.recent_tokens = token.cached;
    raw.end_with_codes(token.cached);
    return true;
  }
  // The split's tokens of [from, to), of which splits take whole tiles.
  VQ_DEVICE void take_share(const AttentionDecodeArgs& args, int from, int to) {
    const i64 share = share_of_split(args, to - from);
    const int base = Plan::config().batch_invariant ? 0 : from;
    begin = clip(base + split * share, to);
    end = clip(base + (split + 1) * share, to);
    if constexpr (Plan::config().batch_invariant) {
      if (begin < from) begin = from;
      if (split == kSplits - 1) end = to;
      if (end < begin) end = begin;
    }
  }
  // The end of the codes of a query token that sees so many tokens, of a block with several.
  VQ_DEVICE int codes_end_at(int sees) const {
    const int own = Raw::least(recent_tokens - (seen - sees), token.cached);
    return Raw::codes_end(own, Raw::least(sees, token.cached));
  }
  // The end of the tokens that any query token of the block reads from codes, where raw ones are
  // shared out apart.
  VQ_DEVICE int end_of_codes() const {
    return clip(raw.recent_tokens > 0 ? raw.recent_tokens : 0, seen);
  }
  // Tokens of each split of a sequence of so many.
  VQ_DEVICE static i64 share_of_split(const AttentionDecodeArgs& args, int length) {
    if constexpr (Plan::config().batch_invariant) {
      return fixed_split(Plan::config(), args.capacity);
    } else {
      const int tiles = length / kTile + (length % kTile != 0);
      return i64{ceil_div(tiles, kSplits)} * kTile;
    }
  }
  VQ_DEVICE static int clip(i64 token, int length) {
    return token < length ? static_cast<int>(token) : length;
  }
};

// The partials of a sequence, if there are several: from slot `first` on.
template <class Plan>
struct SequenceSplits {
  int first, count;

  // Whole warps call it.
  VQ_DEVICE SequenceSplits(const AttentionDecodeArgs& args, int batch)
      : first(batch * partial_count(Plan::config())), count(partial_count(Plan::config())) {
    if constexpr (balanced(Plan::config())) {
      const AttentionPiece piece = AttentionPieces<Plan>::first_of(args, batch);
      first = piece.slot;
      count = piece.count;
    }
  }
};

// Kernel attention_combine: merges a sequence's splits; a block per (query head, sequence, query
// token), a thread per channel and team. Teams load different groups of splits and pass them
// through shared memory. A missing query token is tested last, while loads are in flight.
template <class Plan>
VQ_DEVICE void attention_combine(const AttentionDecodeArgs& args) {
  using Splits = AttentionSplits<Plan>;
  after_last_launch();
  const int head = block_x();
  const int batch = block_y();
  const int number = Plan::config().query_tokens > 1 ? block_z() : 0;
  QueryToken<Plan> token;
  int count = 1;
  i64 row = batch;
  if constexpr (QueryToken<Plan>::kMost > 1) {
    token.read(args, batch, number, 1, count);
    row = token.row;
  }
  const auto [slot, splits] = SequenceSplits<Plan>(args, batch);
  if constexpr (balanced(Plan::config())) {
    if (splits == 1 || thread_index() >= Splits::kHeadDim) return;
  }
  const float* const partials = Splits::partial(args, number, head, slot);
  constexpr int kTeams = merging_teams(Plan::config());
  const int channel = thread_index() % Splits::kHeadDim;
  typename Splits::template Part<1> whole;
  if constexpr (kTeams == 1) {
    whole = Splits::template merged<1>(partials, splits, channel, LoadGlobal());
  } else {
    float* const groups = shared_part<float>(0);
    const int team = thread_index() / Splits::kHeadDim;
    for (int group = team; group * Splits::kTogether < splits; group += kTeams) {
      const auto part =
          Splits::template load_group<1>(partials, group, splits, channel, LoadGlobal());
      float* const partial = groups + group * Splits::kFloats;
      store_shared(partial + channel, part.values[0]);
      if (channel == 0) {
        store_shared(partial + Splits::kHeadDim, part.maximum);
        store_shared(partial + Splits::kHeadDim + 1, part.sum);
      }
    }
    sync_block();
    if (team > 0) return;
    whole = Splits::template groups_together<1>(splits, [&](int group) {
      const float* const partial = groups + group * Splits::kFloats;
      return typename Splits::template Part<1>{{load_shared(partial + channel)},
                                               load_shared(partial + Splits::kHeadDim),
                                               load_shared(partial + Splits::kHeadDim + 1)};
    });
  }
  if (count > 0) Splits::write(args, whole, row * Plan::config().query_heads + head, channel);
}

}  // namespace vq
