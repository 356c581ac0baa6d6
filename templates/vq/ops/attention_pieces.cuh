// The share of a block of attention_decode if blocks share all sequences of a call (schedule
// length). All sequences' turns of turn_tokens() tokens lie end to end, each after kStartTurns
// empty turns that stand for the cost of a sequence. Each block takes an equal number of turns;
// what it has of one sequence is a piece:
//
//   sequences   |        0        | 1 |2|  3  |
//   blocks      |   0   |   1   |   2   |  3  |
//
// A block thus loads its codebooks once, and all blocks have equal work whatever the lengths. The
// piece that block b has of sequence s is slot b + s of the partials: slots are unique, and those
// of a sequence are contiguous. Every warp computes this in integers from the lengths, so that all
// kernels of a call agree.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/layout/attention.h>
#include <vq/machine.cuh>

namespace vq {

// The length of a sequence, clamped so that it is 0 at least and with `fresh` more tokens stays
// within the call's capacity, whatever is stored: reads and writes stay within the arrays.
VQ_DEVICE int length_within(const AttentionDecodeArgs& args, int batch, int fresh = 0) {
  const int length = load_global(args.lengths + batch);
  const i64 most = args.capacity - fresh;
  const int least = length > 0 ? length : 0;
  return least < most ? least : static_cast<int>(most);
}

// The first token that a query token sees which sees the tokens before `seen`, its own the last.
template <class Plan>
VQ_DEVICE int first_seen(int seen) {
  constexpr int kWindow = Plan::config().sliding_window;
  constexpr int kChunk = Plan::config().attention_chunk;
  if constexpr (kWindow > 0) return seen > kWindow ? seen - kWindow : 0;
  if constexpr (kChunk > 0) return seen > 0 ? (seen - 1) / kChunk * kChunk : 0;
  return 0;
}

struct AttentionPiece {
  int batch;       // the sequence
  int split;       // which of its pieces
  int count;       // so many it has
  int slot;        // slot of the partials
  int begin, end;  // turns of the sequence in which tokens are read; maybe none
  int skipped;     // turns of tokens before, which no query token sees
};

template <class Plan>
class AttentionPieces {
 public:
  static constexpr int kBlocks = Plan::config().splits;
  static constexpr int kTurn = turn_tokens(Plan::config());
  static constexpr int kStart = kStartTurns;

  // The pieces of block number `block`. Whole warps call it.
  VQ_DEVICE AttentionPieces(const AttentionDecodeArgs& args, int block) : slot_(block) {
    const i64 all = turns_before(args, args.batch);
    const i64 share = share_of(all);
    const i64 first = block * share;
    share_ = clip(share);
    left_ = all - first < share ? all - first : share;
    if (left_ <= 0) return;
    i64 before = 0;
    for (int of_lanes = 0; of_lanes < args.batch; of_lanes += 32) {
      const int mine = turns_of(args, of_lanes + lane());
      const i64 behind = before + sum_to_lane(mine);
      const int passed = static_cast<int>(sum_of_warp(behind <= first ? 1 : 0));  // sequences
      if (passed < 32) {
        batch_ = of_lanes + passed;
        turns_ = static_cast<int>(shuffle(static_cast<u32>(mine), passed));
        begin_ = static_cast<int>(first - of_lane(behind, passed)) + turns_;
        return;
      }
      before = of_lane(behind, 31);
    }
  }

  // Calls use(piece) for each, in their order. All threads.
  template <class Use>
  VQ_DEVICE void for_each(const AttentionDecodeArgs& args, Use use) {
    while (left_ > 0) {
      const int end = left_ < turns_ - begin_ ? begin_ + static_cast<int>(left_) : turns_;
      const int before = ceil_div(begin_, share_);
      use(AttentionPiece{batch_, before, before + 1 + ceil_div(turns_ - end, share_),
                         slot_ + batch_, reading(begin_), reading(end), skipped_of(args, batch_)});
      left_ -= end - begin_;
      if (left_ > 0) turns_ = turns_of(args, ++batch_);
      begin_ = 0;
    }
  }

  // The first piece of a sequence, whatever block has it; without its turns. Whole warps.
  VQ_DEVICE static AttentionPiece first_of(const AttentionDecodeArgs& args, int batch) {
    const i64 share = share_of(turns_before(args, args.batch));
    const i64 begin = turns_before(args, batch);
    const int first = static_cast<int>(begin / share);
    const int last = static_cast<int>((begin + turns_of(args, batch) - 1) / share);
    return {batch, 0, last - first + 1, first + batch, 0, 0, 0};
  }

 private:
  static constexpr int kQueryTokens = Plan::config().query_tokens;

  VQ_DEVICE static i64 share_of(i64 all) { return (all + kBlocks - 1) / kBlocks; }
  // More than a sequence has is as good as any.
  VQ_DEVICE static int clip(i64 turns) {
    constexpr i64 kMost = 0x7fffffff;
    return static_cast<int>(turns < kMost ? turns : kMost);
  }

  // Turns that any query token of the sequence may see, with the start's; 0 past the last sequence.
  VQ_DEVICE static int turns_of(const AttentionDecodeArgs& args, int batch) {
    if (batch >= args.batch) return 0;
    const int length = length_within(args, batch);
    const int fresh = kQueryTokens > 1 && args.new_keys != nullptr ? kQueryTokens : 0;
    const int tokens = (length > 0 ? length : 0) + fresh;
    const int turns = tokens / kTurn + (tokens % kTurn != 0);
    if constexpr (sees_part(Plan::config())) return kStart + turns - skipped_of(args, batch);
    return kStart + turns;
  }
  // Turns of tokens that no query token of the sequence sees, however many it has.
  VQ_DEVICE static int skipped_of(const AttentionDecodeArgs& args, int batch) {
    if constexpr (!sees_part(Plan::config())) return 0;
    const int length = length_within(args, batch);
    const bool fresh = kQueryTokens > 1 && args.new_keys != nullptr;
    return first_seen<Plan>(fresh ? length + 1 : length - (kQueryTokens - 1)) / kTurn;
  }
  VQ_DEVICE static int reading(int turns) { return turns > kStart ? turns - kStart : 0; }
  // Turns of all sequences before `batch`.
  VQ_DEVICE static i64 turns_before(const AttentionDecodeArgs& args, int batch) {
    i64 turns = 0;
    for (int b = lane(); b < batch; b += 32) turns += turns_of(args, b);
    return sum_of_warp(turns);
  }

  VQ_DEVICE static i64 of_lane(i64 mine, int source) {
    const u32 low = shuffle(static_cast<u32>(mine), source);
    const u32 high = shuffle(static_cast<u32>(mine >> 32), source);
    return static_cast<i64>(u64{high} << 32 | low);
  }
  VQ_DEVICE static i64 sum_of_warp(i64 mine) {
    VQ_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) mine += of_lane(mine, lane() ^ mask);
    return mine;
  }
  // Inclusive prefix sum over lanes.
  VQ_DEVICE static i64 sum_to_lane(i64 mine) {
    VQ_UNROLL
    for (int back = 1; back < 32; back *= 2) {
      const i64 before = of_lane(mine, lane() < back ? lane() : lane() - back);
      if (lane() >= back) mine += before;
    }
    return mine;
  }

  int slot_;   // less the sequence
  int share_;  // turns per block
  i64 left_;   // turns left in this sequence; at most 0 ends the block
  int batch_;
  int turns_;  // turns of the sequence
  int begin_;  // the block's first turn among them
};

}  // namespace vq
