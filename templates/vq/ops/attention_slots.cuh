// Which sequence a block of attention_decode works on. The splits of a launch's sequences are slots
// that belong to no sequence beforehand: where lengths differ, blocks hand them out by length, so
// that a long sequence of a batch has many and none takes longer than need be:
//
//   even       sequence b has slots [b kSplits, (b + 1) kSplits), each a share of its own length,
//              or, where results are independent, of the call's capacity
//   balanced   a slot has at most `share` tiles, the least number with which there are slots for
//              all; sequences have theirs one after the other, one at least, the rest idle
//
// Balanced they are only where the plan says so (splits_by): reading all lengths takes time before
// the first codes, and before splits are merged.
//
// Every warp works that out from the lengths, in integers, so that all kernels of a call agree.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/layout/attention.h>
#include <vq/machine.cuh>

namespace vq {

template <class Plan>
struct AttentionSlots {
  static constexpr int kSplits = Plan::config().splits;
  static constexpr int kTile = token_tile(Plan::config());
  static constexpr int kQueryTokens = Plan::config().query_tokens;
  static constexpr bool kBalanced = balanced(Plan::config());

  int batch;  // the sequence
  int split;  // of its `count`; of first_of(), 0
  int count;  // 0: the slot is idle
  int slot;   // number `split` of the sequence
  int share;  // tiles of each of its splits; 0: as many as its own length makes of kSplits

  // What slot number `slot` is. Whole warps.
  VQ_DEVICE static AttentionSlots of(const AttentionDecodeArgs& args, int slot) {
    const int share = kBalanced ? shared_tiles(args) : 0;
    if (share == 0) return {slot / kSplits, slot % kSplits, kSplits, slot, 0};
    int begin = 0;
    for (int first = 0; first < args.batch; first += 32) {
      const int mine = slots_of(args, first + lane(), share);
      const int behind = begin + sum_to_lane(mine);
      const int end = static_cast<int>(shuffle(static_cast<u32>(behind), 31));
      if (slot < end) {
        const int before = static_cast<int>(sum_of_warp(behind <= slot ? 1u : 0u));  // lanes
        const int count = static_cast<int>(shuffle(static_cast<u32>(mine), before));
        const int split =
            slot - static_cast<int>(shuffle(static_cast<u32>(behind), before)) + count;
        return {first + before, split, count, slot, share};
      }
      begin = end;
    }
    return {0, 0, 0, slot, share};
  }

  // The first slot of a sequence. Whole warps.
  VQ_DEVICE static AttentionSlots first_of(const AttentionDecodeArgs& args, int batch) {
    const int share = kBalanced ? shared_tiles(args) : 0;
    if (share == 0) return {batch, 0, kSplits, batch * kSplits, 0};
    u32 before = 0;
    for (int b = lane(); b < batch; b += 32) before += static_cast<u32>(slots_of(args, b, share));
    const int first = static_cast<int>(sum_of_warp(before));
    return {batch, 0, slots_of(args, batch, share), first, share};
  }

  // Slots of all sequences together.
  VQ_DEVICE static int all(const AttentionDecodeArgs& args) { return args.batch * kSplits; }

 private:
  // A sum of this many tiles or more is not told from others.
  static constexpr u32 kManyTiles = 1u << 26;

  // Tiles of a slot where slots are balanced, 0 where each sequence has as many.
  VQ_DEVICE static int shared_tiles(const AttentionDecodeArgs& args) {
    if (args.batch == 1) return 0;
    u32 total = 0;
    u32 most = 0;
    for (int b = lane(); b < args.batch; b += 32) {
      const auto tiles = static_cast<u32>(tiles_of(args, b));
      most = tiles > most ? tiles : most;
      total = total + tiles < kManyTiles ? total + tiles : kManyTiles;
    }
    VQ_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
      const u32 other = shuffle_xor(most, mask);
      most = other > most ? other : most;
      total += shuffle_xor(total, mask);
    }
    const int slots = all(args);
    int high = ceil_div(static_cast<int>(most), kSplits);  // with which there are slots for all
    // Of equal lengths, or of such that balancing gains no sixteenth.
    if (high <= 1 || i64{16} * (high - 1) * slots <= i64{17} * total) return 0;
    int low = 1;
    if (total < kManyTiles) {
      const int enough = static_cast<int>(total) / (slots - args.batch) + 1;
      high = enough < high ? enough : high;
      low = static_cast<int>(total) / slots > 1 ? static_cast<int>(total) / slots : 1;
    }
    while (high - low > high / 32) {
      const int share = low + (high - low) / 2;
      int taken = 0;
      for (int b = lane(); b < args.batch; b += 32) {
        taken += slots_of(args, b, share);
        taken = taken <= slots ? taken : slots + 1;
      }
      if (sum_of_warp(static_cast<u32>(taken)) <= static_cast<u32>(slots)) {
        high = share;
      } else {
        low = share + 1;
      }
    }
    return high;
  }

  // What any query token of the sequence may see.
  VQ_DEVICE static int tiles_of(const AttentionDecodeArgs& args, int batch) {
    const int length = load_global(args.lengths + batch);
    const int fresh = kQueryTokens > 1 && args.new_keys != nullptr ? kQueryTokens : 0;
    const int tokens = (length > 0 ? length : 0) + fresh;
    return tokens / kTile + (tokens % kTile != 0);
  }
  // None where there is no such sequence.
  VQ_DEVICE static int slots_of(const AttentionDecodeArgs& args, int batch, int share) {
    if (batch >= args.batch) return 0;
    const int slots = ceil_div(tiles_of(args, batch), share);
    return slots > 0 ? slots : 1;
  }

  VQ_DEVICE static u32 sum_of_warp(u32 mine) {
    VQ_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) mine += shuffle_xor(mine, mask);
    return mine;
  }
  // Of the lanes up to this one.
  VQ_DEVICE static int sum_to_lane(int mine) {
    auto sum = static_cast<u32>(mine);
    VQ_UNROLL
    for (int back = 1; back < 32; back *= 2) {
      const u32 before = shuffle(sum, lane() < back ? lane() : lane() - back);
      if (lane() >= back) sum += before;
    }
    return static_cast<int>(sum);
  }
};

}  // namespace vq
