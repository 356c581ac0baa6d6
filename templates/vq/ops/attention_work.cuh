// What one block of attention_decode works on and where its result goes; the kernel that merges
// splits.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/layout/attention.h>
#include <vq/ops/attention_pieces.cuh>
#include <vq/ops/attention_splits.cuh>
#include <vq/tokens/cached_rows.cuh>

namespace vq {

// What makes q.k a score in units of log2, so that exp2 serves the softmax.
VQ_DEVICE float score_scale(const AttentionDecodeArgs& args) {
  constexpr float kLog2E = 1.44269504088896340736f;
  return args.softmax_scale * kLog2E;
}

// One query token of a sequence. Where there is but one, its row is the sequence.
template <class Plan>
struct QueryToken {
  static constexpr int kMost = Plan::config().query_tokens;
  i64 row;     // of query, out and lse
  int cached;  // of the tokens that it sees, from which on they come from new_keys and new_values
  i64 fresh;   // row of these less token

  // Of all query tokens that a call may have.
  VQ_DEVICE static i64 slot(int batch, int number) { return i64{batch} * kMost + number; }

  // The tokens that the last of at most `most` from number `number` on sees, how many these are
  // coming to stand in `count`. May be none or fewer; without any, of which `count` is 0 or less,
  // nothing is to be written. Call it before the others.
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
    const int seen = length + number + count - (appended ? all : 0);
    row = i64{first} + number;
    fresh = i64{first} - length;
    cached = appended ? seen : length;
    return seen;
  }
};

// Tokens [begin, end) of the sequence, those that the last of the block's query tokens sees.
// `heads` of the block's query heads are real; they start at `first_head`. Of several query tokens
// the heads of each follow each other.
template <class Plan>
struct AttentionWork {
  static constexpr int kHeadDim = Plan::config().head_dim;
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
  using Raw = RawRows<Plan>;
  static constexpr bool kRawApart = raw_apart(Plan::config());

  int batch, split, splits, slot;  // of the sequence's `splits`; of all partials
  int kv_head, first_head, heads;
  int number;               // of the first query token
  int behind;               // query tokens of the block behind that one
  int seen, recent_tokens;  // tokens that the last one sees; from where on it reads its own window.
                            // The first where raw tokens are shared out apart, too
  int begin, end;
  typename Raw::Tokens raw;
  QueryToken<Plan> token;

  // Calls use(work) where the block has any.
  template <class Use>
  VQ_DEVICE static void of_block(const AttentionDecodeArgs& args, int shares, Use use) {
    AttentionWork work = place_of_block(shares);
    if (!work.read_lengths(args)) return;
    use(work);
  }

  // What needs no memory. `shares` blocks of each heads and split follow each other along the
  // grid's second axis.
  VQ_DEVICE static AttentionWork place_of_block(int shares = 1) {
    AttentionWork work;
    const int block = block_y() / shares;
    work.kv_head = block / kHeadBlocks;
    work.number = kQueryTokens > 1 ? block % kHeadBlocks / kTokenBlocks * kTokens : 0;
    const int in_group = block % kTokenBlocks * kHeads;
    work.first_head = work.kv_head * kGroup + in_group;
    work.heads = kGroup - in_group < kHeads ? kGroup - in_group : kHeads;  // of one query token
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
        take_share(args, 0, length);
      }
    });
    if constexpr (kRawApart) {
      const int codes = clip(raw.recent_tokens > 0 ? raw.recent_tokens : 0, seen);
      take_share(args, clip(raw.sinks, codes) / kTile * kTile, codes);
    }
    return any;
  }
  // Likewise, of a piece.
  VQ_DEVICE bool take(const AttentionDecodeArgs& args, const AttentionPiece& piece) {
    batch = piece.batch;
    split = piece.split;
    splits = piece.count;
    slot = piece.slot;
    return read_tokens(args, [&](int length) {
      constexpr i64 kTurn = AttentionPieces<Plan>::kTurn;
      begin = clip(piece.begin * kTurn, length);
      end = clip(piece.end * kTurn, length);
    });
  }
  // Where the tokens of the block's split begin, before the wait for the last launch, which may
  // still write the length: maybe elsewhere, but within the sequence's room.
  VQ_DEVICE i64 begin_by_hint(const AttentionDecodeArgs& args) const {
    if constexpr (kSplits == 1) return 0;
    int length = load_hint(args.lengths + block_z());
    if constexpr (kRawApart && Raw::kMaxRecentTokens > 0) {
      const i64 codes = i64{length} - load_hint(args.recent_counts + block_z());
      length = codes < length ? static_cast<int>(codes > 0 ? codes : 0) : length;
    }
    const i64 first = block_x() * share_of_split(args, length > 0 ? length : 0);
    return first < args.capacity ? first : args.capacity;
  }

  // Of query token number `of` of the block: where what it reads from codes ends, and what it sees.
  VQ_DEVICE int codes_end(int of) const {
    if constexpr (kTokens == 1) return raw.recent_tokens;
    const int own = Raw::least(recent_tokens - behind + of, token.cached);
    if constexpr (Raw::kTogether == 1) return own;
    return Raw::codes_end(own, Raw::least(seen_end(of), token.cached));
  }
  VQ_DEVICE int seen_end(int of) const {
    if constexpr (kTokens == 1) return end;
    return seen - behind + of;
  }
  // The first token that any reads raw and that is no sink; `end` or more where there is none.
  VQ_DEVICE int raw_begin() const {
    return kTokens > 1 && (Raw::kTogether > 1 || raw.recent_tokens < seen) ? codes_end(0)
                                                                           : raw.recent_tokens;
  }

  VQ_DEVICE bool is_raw(int of) const {
    if constexpr (kQueryTokens > 1) return of < raw.sinks || of >= raw.recent_tokens;
    return raw.holds(of);
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

  // Of `count` tokens from `first` on, those that the cache holds codes of.
  VQ_DEVICE int cached(int first, int count) const {
    if constexpr (kQueryTokens == 1) return count;
    return Raw::least(token.cached - first, count);
  }

  // The row of a raw token, from element `skipped` on: of the cache's slots, or of what came with
  // the query.
  VQ_DEVICE const u16* raw_key(const AttentionDecodeArgs& args, int of, int skipped = 0) const {
    return raw_row(args, args.raw_keys, args.new_keys, of, skipped);
  }
  VQ_DEVICE const u16* raw_value(const AttentionDecodeArgs& args, int of, int skipped = 0) const {
    return raw_row(args, args.raw_values, args.new_values, of, skipped);
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
    if (is_whole()) {
      const i64 to = first() + heads_to(h);
      store_global(args.out + to * kHeadDim + channel,
                   from_float<Plan::config().element>(sum == 0.0f ? 0.0f : value / sum));
      if (channel == 0) store_global(args.lse + to, Splits::log_sum_exp(maximum, sum));
    } else {
      float* const to = Splits::partial(args, number, first_head + heads_to(h), slot);
      store_global(to + channel, value);
      if (channel == 0) {
        store_global(to + kHeadDim, maximum);
        store_global(to + kHeadDim + 1, sum);
      }
    }
  }

  // In one access where `out` is aligned to it, which callers need not see to.
  VQ_DEVICE static void store_pair(u16* to, u32 pair) {
    if (reinterpret_cast<u64>(to) % sizeof(u32) == 0) {
      store_global(reinterpret_cast<u32*>(to), pair);
    } else {
      store_global(to, static_cast<u16>(pair & 0xffffu));
      store_global(to + 1, static_cast<u16>(pair >> 16));
    }
  }

  // The same of channels `channel`, an even one, and the next.
  VQ_DEVICE void write_two(const AttentionDecodeArgs& args, int h, int channel, float even,
                           float odd, float maximum, float sum) const {
    if (is_whole()) {
      const i64 to = first() + heads_to(h);
      const bool empty = sum == 0.0f;
      store_pair(
          args.out + to * kHeadDim + channel,
          pack2<Plan::config().element>(empty ? 0.0f : even / sum, empty ? 0.0f : odd / sum));
      if (channel == 0) store_global(args.lse + to, Splits::log_sum_exp(maximum, sum));
    } else {
      float* const to = Splits::partial(args, number, first_head + heads_to(h), slot);
      store_global(reinterpret_cast<U32x2*>(to + channel),
                   U32x2{float_bits(even), float_bits(odd)});
      if (channel == 0) {
        store_global(to + kHeadDim, maximum);
        store_global(to + kHeadDim + 1, sum);
      }
    }
  }

  // Blocks that share the sequence's tokens; whether this one has them all.
  VQ_DEVICE int sharing() const { return balanced(Plan::config()) ? splits : kSplits; }
  VQ_DEVICE bool is_whole() const { return sharing() == 1; }

  // Of the blocks that share these heads, the last merges their splits where the plan says so. A
  // word at `shared` is no longer needed. All threads.
  VQ_DEVICE void merge_if_last(const AttentionDecodeArgs& args, i64 shared = 0) const {
    if constexpr (Plan::config().combine == Combine::last_block) {
      constexpr int kOfBatch = Plan::config().kv_heads * kHeadBlocks;
      if (is_whole()) return;
      u32* const counter = args.counters + i64{batch} * kOfBatch + block_y();
      if (!is_last_of(sharing(), counter, shared)) return;
      // Two channels a thread wait for memory together.
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
  // Of all heads of out the block's first.
  VQ_DEVICE i64 first() const { return query_row() * Plan::config().query_heads + first_head; }
  VQ_DEVICE const u16* raw_row(const AttentionDecodeArgs& args, const u16* slots, const u16* fresh,
                               int of, int skipped) const {
    if constexpr (kQueryTokens > 1) {
      if (of >= token.cached) {
        return fresh + ((token.fresh + of) * Plan::config().kv_heads + kv_head) * kHeadDim +
               skipped;
      }
    }
    return slots + skipped + Raw::at(args, batch, kv_head, of, raw.sinks);
  }
  // What stands in memory of the sequence; set_range(length) says which of its tokens are the
  // split's.
  template <class SetRange>
  VQ_DEVICE bool read_tokens(const AttentionDecodeArgs& args, SetRange set_range) {
    int count = 1;
    const int last = token.read(args, batch, number, kTokens, count);
    if (kQueryTokens > 1 && count <= 0) return false;
    const int length = kQueryTokens == 1 || last > 0 ? last : 0;
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
  // The split's tokens of [from, to), of which splits take whole tiles.
  VQ_DEVICE void take_share(const AttentionDecodeArgs& args, int from, int to) {
    const i64 share = share_of_split(args, to - from);
    const int base = Plan::config().batch_invariant ? 0 : from;
    begin = clip(base + split * share, to);
    end = clip(base + (split + 1) * share, to);
    if constexpr (Plan::config().batch_invariant) {
      if (begin < from) begin = from;
      if (split == kSplits - 1) end = to;
    }
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

// attention_combine: the splits of a sequence become one by a kernel of its own. A block for each
// (query head, sequence, query token); a thread for each channel and team. Teams load other groups
// of splits meanwhile, and hand them over in shared memory as they stand in args.partials. Whether
// there is such a query token is asked last: partials come meanwhile, whatever stands in them.
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
  int slot = batch * Splits::kSplits;
  int splits = Splits::kSplits;
  if constexpr (balanced(Plan::config())) {
    const AttentionPiece first = AttentionPieces<Plan>::first_of(args, batch);
    slot = first.slot;
    splits = first.count;
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
      float* const at = groups + group * Splits::kFloats;
      store_shared(at + channel, part.values[0]);
      if (channel == 0) {
        store_shared(at + Splits::kHeadDim, part.maximum);
        store_shared(at + Splits::kHeadDim + 1, part.sum);
      }
    }
    sync_block();
    if (team > 0) return;
    whole = Splits::template groups_together<1>(splits, [&](int group) {
      const float* const at = groups + group * Splits::kFloats;
      return typename Splits::template Part<1>{{load_shared(at + channel)},
                                               load_shared(at + Splits::kHeadDim),
                                               load_shared(at + Splits::kHeadDim + 1)};
    });
  }
  if (count > 0) Splits::write(args, whole, row * Plan::config().query_heads + head, channel);
}

}  // namespace vq
