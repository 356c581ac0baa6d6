// The shared levels: a range of entries in shared memory, each kCopies times side by side. Lane l
// reads copy l % kCopies. With kCopies x entry bytes = 128 every lane that the hardware serves at
// once reads banks of its own, so that no two codes conflict; with one copy random codes serialise
// about threefold. The copies are paid for in shared memory, that is, in resident blocks.
#pragma once

#include <vq/codebook/entry.cuh>

namespace vq {

// Entries [kBegin, kEnd) of each codebook (unit, stage), whose u16 stand at byte `kOffset` of
// shared memory: [book][entry][copy][vector_size].
template <class Words, i64 kOffset, int kBegin, int kEnd, int kCopies, int kThreads>
struct SharedLevel {
  static constexpr int kCount = kEnd - kBegin;

  // All threads of the block; `entry(book, number)` fetches one from global memory.
  template <class Entry>
  VQ_DEVICE static void load(i64 books, Entry entry) {
    if constexpr (kCount > 0) {
      const i64 places = books * kCount * kCopies;
      for (i64 i = thread_index(); i < places; i += kThreads) {
        const i64 held = i / kCopies;
        store_shared(at() + i, entry(held / kCount, kBegin + static_cast<int>(held % kCount)));
      }
    }
  }

  VQ_DEVICE static Words access(i64 book, u32 number) {
    i64 place = (book * kCount + static_cast<int>(number) - kBegin) * kCopies;
    if constexpr (kCopies > 1) place += lane() % kCopies;
    return load_shared(at() + place);
  }

 private:
  VQ_DEVICE static Words* at() { return reinterpret_cast<Words*>(shared_memory() + kOffset); }
};

}  // namespace vq
