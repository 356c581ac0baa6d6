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

// Entries [0, kCount) of the codebooks (unit, stage). kCount > 0.
template <class Words, int kUnits, int kResiduals, int kCount>
class RegisterLevel {
 public:
  // `units` of them exist; entry(unit, stage, number) fetches one from global memory.
  template <class Entry>
  VQ_DEVICE void load(int units, Entry entry) {
    VQ_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      VQ_UNROLL
      for (int i = 0; i < kResiduals * kCount; ++i) {
        held_[unit][i] = entry(unit < units ? unit : 0, i / kCount, i % kCount);
      }
    }
  }

  // The entry, where number < kCount, else `other`.
  VQ_DEVICE Words access(int unit, int stage, u32 number, Words other) const {
    VQ_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      VQ_UNROLL
      for (int i = 0; i < kResiduals * kCount; ++i) {
        const bool here =
            unit == u && stage == i / kCount && number == static_cast<u32>(i % kCount);
        other = select_words(here, held_[u][i], other);
      }
    }
    return other;
  }

 private:
  Words held_[kUnits][kResiduals * kCount];
};

// The empty level.
template <class Words, int kUnits, int kResiduals>
class RegisterLevel<Words, kUnits, kResiduals, 0> {
 public:
  template <class Entry>
  VQ_DEVICE void load(int, Entry) {}
  VQ_DEVICE Words access(int, int, u32, Words other) const { return other; }
};

}  // namespace vq
