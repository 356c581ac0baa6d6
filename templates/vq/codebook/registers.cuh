// The register level: the hottest entries stand in registers of every thread. A register array
// cannot be indexed at run time, so an access compares with each place and selects.
#pragma once

#include <vq/codebook/entry.cuh>

namespace vq {

VQ_DEVICE u32 select_words(bool take, u32 a, u32 b) { return take ? a : b; }
VQ_DEVICE U32x2 select_words(bool take, U32x2 a, U32x2 b) {
  return {take ? a.x : b.x, take ? a.y : b.y};
}
VQ_DEVICE U32x4 select_words(bool take, U32x4 a, U32x4 b) {
  return {take ? a.x : b.x, take ? a.y : b.y, take ? a.z : b.z, take ? a.w : b.w};
}

// Entries [0, kCount) of kBooks codebooks (unit, stage). kCount > 0.
template <class Words, int kBooks, int kCount>
class RegisterLevel {
 public:
  // `books` of them exist; entry(book, number) fetches one from global memory.
  template <class Entry>
  VQ_DEVICE void load(i64 books, Entry entry) {
    VQ_UNROLL
    for (int i = 0; i < kBooks * kCount; ++i) {
      const int book = i / kCount < books ? i / kCount : 0;
      held_[i] = entry(book, i % kCount);
    }
  }

  // The entry, where number < kCount, else `other`.
  VQ_DEVICE Words access(i64 book, u32 number, Words other) const {
    VQ_UNROLL
    for (int i = 0; i < kBooks * kCount; ++i) {
      other = select_words(book == i / kCount && number == static_cast<u32>(i % kCount), held_[i],
                           other);
    }
    return other;
  }

 private:
  Words held_[kBooks * kCount];
};

// The empty level.
template <class Words, int kBooks>
class RegisterLevel<Words, kBooks, 0> {
 public:
  template <class Entry>
  VQ_DEVICE void load(i64, Entry) {}
  VQ_DEVICE Words access(i64, u32, Words other) const { return other; }
};

}  // namespace vq
