// Sums of many values over a warp at once.
#pragma once

#include <vq/machine.cuh>

namespace vq {

// kCount values are left of kAll: lanes that differ in bit kCount / 2 * kStride split them.
template <int kLanes, int kStride, int kAll, int kCount>
VQ_DEVICE float transposing_halves(const float (&values)[kCount]) {
  if constexpr (kCount == 1) {
    float sum = values[0];
    constexpr int kFirst = kStride == 1 ? kAll : 1;  // of the bits that split nothing
    VQ_UNROLL
    for (int mask = kFirst; mask < kFirst * (kLanes / kAll); mask *= 2) {
      sum += shuffle_xor(sum, mask);
    }
    return sum;
  } else {
    constexpr int kHalf = kCount / 2;
    const bool upper = (lane() & kHalf * kStride) != 0;
    float sums[kHalf];
    VQ_UNROLL
    for (int i = 0; i < kHalf; ++i) {
      const float given = upper ? values[i] : values[i + kHalf];
      const float kept = upper ? values[i + kHalf] : values[i];
      sums[i] = kept + shuffle_xor(given, kHalf * kStride);
    }
    return transposing_halves<kLanes, kStride, kAll, kHalf>(sums);
  }
}

// Lane l gets the sum over its group of kLanes consecutive lanes of their values[l / kStride %
// kCount]; both powers of two, kCount <= kLanes <= 32, and kStride is 1 or kLanes / kCount. All
// lanes of the warp. Each step adds pairs of values, so kCount sums take kCount - 1 shuffles; the
// order does not depend on the values.
template <int kCount, int kLanes = 32, int kStride = 1>
VQ_DEVICE float transposing_sum(const float (&values)[kCount]) {
  static_assert(kCount <= kLanes && (kCount & (kCount - 1)) == 0, "a power of two up to kLanes");
  static_assert(kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "a power of two up to 32");
  static_assert(kStride == 1 || kStride * kCount == kLanes, "neighbours, or all lanes");
  return transposing_halves<kLanes, kStride, kCount, kCount>(values);
}

}  // namespace vq
