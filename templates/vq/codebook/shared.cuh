// The shared levels: a range of entries in shared memory, each kCopies times side by side. Lane l
// reads copy l % kCopies. With kCopies x entry bytes = 128 every lane that the hardware serves at
// once reads banks of its own, so that no two codes conflict; with one copy random codes serialise
// about threefold. The copies are paid for in shared memory, that is, in resident blocks.
//
//   a unit   | entry kBegin: stage 0, its copies | stage 1 ... | entry kBegin + 1: ...
//
// so that, where a row is a power of two, an address is the number shifted and the lane's bytes put
// below it.
#pragma once

#include <vq/codebook/entry.cuh>

namespace vq {

// Entries [kBegin, kEnd) of each codebook (unit, stage), from byte kOffset of shared memory on.
template <class Words, i64 kOffset, int kResiduals, int kBegin, int kEnd, int kCopies, int kThreads>
struct SharedLevel {
  static constexpr int kCount = kEnd - kBegin;
  static constexpr int kStageBytes = kCopies * static_cast<int>(sizeof(Words));
  static constexpr int kRowBytes = kResiduals * kStageBytes;
  static constexpr bool kShifts = (kRowBytes & (kRowBytes - 1)) == 0;

  // All threads of the block; `entry(unit, stage, number)` fetches one from global memory.
  template <class Entry>
  VQ_DEVICE static void load(int units, Entry entry) {
    if constexpr (kCount > 0) {
      const int places = units * kCount * kResiduals * kCopies;
      for (int i = thread_index(); i < places; i += kThreads) {
        const int row = i / kCopies / kResiduals;
        store_shared(at() + i,
                     entry(row / kCount, i / kCopies % kResiduals, kBegin + row % kCount));
      }
    }
  }

  VQ_DEVICE static Words access(int unit, int stage, u32 number) {
    u32 lane_bytes = 0;
    if constexpr (kCopies > 1) lane_bytes = lane() % kCopies * static_cast<int>(sizeof(Words));
    const u32 row = number * kRowBytes;
    const u32 place = kShifts ? row | lane_bytes : row + lane_bytes;
    const u8* base = shared_memory() + kOffset + (unit * kCount - kBegin) * kRowBytes;
    return load_shared(reinterpret_cast<const Words*>(base + stage * kStageBytes + place));
  }

 private:
  VQ_DEVICE static Words* at() { return reinterpret_cast<Words*>(shared_memory() + kOffset); }
};

}  // namespace vq
