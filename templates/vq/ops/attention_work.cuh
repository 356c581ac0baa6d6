// What one block of attention_decode works on, where its result goes, and how the partial results
// of a sequence's splits become one:
//
//   partials   [batch x query head][split][channel .., maximum, sum] fp32
//
// Merged in the order of the splits; where a split holds no token, its maximum is -inf, its sum 0.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/layout/attention.h>
#include <vq/ops/splits.cuh>
#include <vq/tokens/cached_rows.cuh>

namespace vq {

template <class Plan>
struct AttentionSplits {
  static constexpr int kHeadDim = Plan::config().head_dim;
  static constexpr int kSplits = Plan::config().splits;
  static constexpr int kFloats = kHeadDim + 2;

  // That of split number `split` for (batch, head) number `head`.
  VQ_DEVICE static float* partial(const AttentionDecodeArgs& args, i64 head, int split) {
    return args.partials + (head * kSplits + split) * kFloats;
  }

  // One channel of one head's result; with channel 0 its log-sum-exp. `load` reads a partial.
  template <class Load>
  VQ_DEVICE static void merge(const AttentionDecodeArgs& args, i64 head, int channel, Load load) {
    const float* const partials = partial(args, head, 0);
    struct Part {
      float value, maximum, sum;
    };
    const auto part_of = [&](int split) {
      const float* const from = partials + split * kFloats;
      return Part{load(from + channel), load(from + kHeadDim), load(from + kHeadDim + 1)};
    };
    float highest = -infinity();
    const auto raise = [&](float other) { highest = other > highest ? other : highest; };
    float total = 0.0f;
    float value = 0.0f;
    const auto add = [&](const Part& part) {
      if (part.sum == 0.0f) return;
      const float weight = exp2_approx(part.maximum - highest);
      total += weight * part.sum;
      value += weight * part.value;
    };
    constexpr int kInFlight = 16;
    if constexpr (kSplits <= kInFlight) {  // one wait for memory
      Part parts[kSplits];
      VQ_UNROLL
      for (int split = 0; split < kSplits; ++split) parts[split] = part_of(split);
      VQ_UNROLL
      for (int split = 0; split < kSplits; ++split) raise(parts[split].maximum);
      VQ_UNROLL
      for (int split = 0; split < kSplits; ++split) add(parts[split]);
    } else {
      in_order<kSplits, kInFlight>(
          [&](int split) { return load(partials + split * kFloats + kHeadDim); }, raise);
      in_order<kSplits, kInFlight>(part_of, add);
    }
    store_global(args.out + head * kHeadDim + channel,
                 from_float<Plan::config().element>(total == 0.0f ? 0.0f : value / total));
    if (channel == 0) store_global(args.lse + head, log_sum_exp(highest, total));
  }

  // Natural logarithm from a maximum in units of log2; -inf where nothing was summed.
  VQ_DEVICE static float log_sum_exp(float highest, float total) {
    constexpr float kLn2 = 0.69314718055994530942f;
    return total == 0.0f ? -infinity() : (highest + log2_approx(total)) * kLn2;
  }
};

// What makes q.k a score in units of log2, so that exp2 serves the softmax.
VQ_DEVICE float score_scale(const AttentionDecodeArgs& args) {
  constexpr float kLog2E = 1.44269504088896340736f;
  return args.softmax_scale * kLog2E;
}

// Tokens [begin, end) of the sequence. `heads` of the block's query heads are real; they start at
// `first_head`.
template <class Plan>
struct AttentionWork {
  static constexpr int kHeadDim = Plan::config().head_dim;
  static constexpr int kGroup = group(Plan::config());
  static constexpr int kHeads = Plan::config().heads_per_block;
  static constexpr int kHeadBlocks = head_blocks(Plan::config());
  static constexpr int kTile = token_tile(Plan::config());
  static constexpr int kSplits = Plan::config().splits;
  static constexpr int kThreads = Plan::config().threads;
  using Splits = AttentionSplits<Plan>;
  using Raw = RawRows<Plan>;

  int batch, split, kv_head, first_head, heads;
  int begin, end;
  typename Raw::Tokens raw;

  VQ_DEVICE static AttentionWork of_block(const AttentionDecodeArgs& args, int shares = 1) {
    AttentionWork work = place_of_block(shares);
    work.read_lengths(args);
    return work;
  }

  // What needs no memory. `shares` blocks of each heads and split follow each other along the
  // grid's second axis.
  VQ_DEVICE static AttentionWork place_of_block(int shares = 1) {
    AttentionWork work;
    work.batch = block_z();
    work.split = block_x();
    const int block = block_y() / shares;
    work.kv_head = block / kHeadBlocks;
    const int in_group = block % kHeadBlocks * kHeads;
    work.first_head = work.kv_head * kGroup + in_group;
    work.heads = kGroup - in_group < kHeads ? kGroup - in_group : kHeads;
    return work;
  }
  // The rest. Every split takes a whole number of tiles of its own sequence's length, so that short
  // sequences of a ragged batch are spread as evenly as long ones.
  VQ_DEVICE void read_lengths(const AttentionDecodeArgs& args) {
    const int length = load_global(args.lengths + batch);
    const int tiles = length / kTile + (length % kTile != 0);
    const int share = ceil_div(tiles, kSplits);
    begin = clip(i64{split} * share * kTile, length);
    end = clip(i64{split + 1} * share * kTile, length);
    raw = Raw::tokens(args, batch, length);
  }

  VQ_DEVICE bool is_raw(int token) const { return raw.holds(token); }

  // Elements from args.raw_keys or args.raw_values to the row of a raw token.
  VQ_DEVICE i64 raw_row(const AttentionDecodeArgs& args, int token) const {
    return Raw::at(args, batch, kv_head, token, raw.sinks);
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
    const i64 head = first() + h;
    if constexpr (kSplits == 1) {
      store_global(args.out + head * kHeadDim + channel,
                   from_float<Plan::config().element>(sum == 0.0f ? 0.0f : value / sum));
      if (channel == 0) store_global(args.lse + head, Splits::log_sum_exp(maximum, sum));
    } else {
      float* const to = Splits::partial(args, head, split);
      store_global(to + channel, value);
      if (channel == 0) {
        store_global(to + kHeadDim, maximum);
        store_global(to + kHeadDim + 1, sum);
      }
    }
  }

  // Of the blocks that share these heads, the last merges their splits where the plan says so. All
  // threads.
  VQ_DEVICE void merge_if_last(const AttentionDecodeArgs& args) const {
    if constexpr (Plan::config().combine == Combine::last_block) {
      constexpr int kOfBatch = Plan::config().kv_heads * kHeadBlocks;
      if (!is_last_of(kSplits, args.counters + i64{batch} * kOfBatch + block_y())) return;
      for (int i = thread_index(); i < heads * kHeadDim; i += kThreads) {
        Splits::merge(args, first() + i / kHeadDim, i % kHeadDim, LoadOfThisLaunch());
      }
    }
  }

 private:
  // Of all heads of the batch, the block's first.
  VQ_DEVICE i64 first() const { return i64{batch} * Plan::config().query_heads + first_head; }
  VQ_DEVICE static int clip(i64 token, int length) {
    return token < length ? static_cast<int>(token) : length;
  }
};

// attention_combine: the splits of a sequence become one by a kernel of its own. A block a (query
// head, sequence), a thread a channel.
template <class Plan>
VQ_DEVICE void attention_combine(const AttentionDecodeArgs& args) {
  const i64 head = i64{block_y()} * Plan::config().query_heads + block_x();
  AttentionSplits<Plan>::merge(args, head, thread_index(), LoadGlobal());
}

}  // namespace vq
