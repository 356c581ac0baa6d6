// Sums of many values over a warp at once.
#pragma once

#include <vq/machine.cuh>

namespace vq {

// Lane l gets the sum over all lanes of their values[l % kCount]; kCount a power of two up to 32.
// Each step adds pairs of values and halves their number, so that kCount sums take kCount - 1
// shuffles, not 5 kCount; all in one order, whatever the lanes hold.
template <int kCount>
VQ_DEVICE float transposing_sum(float (&values)[kCount]) {
  static_assert(kCount <= 32 && (kCount & (kCount - 1)) == 0, "a power of two up to 32");
  VQ_UNROLL
  for (int half = kCount / 2; half > 0; half /= 2) {
    const bool upper = (lane() & half) != 0;
    VQ_UNROLL
    for (int i = 0; i < half; ++i) {
      const float given = upper ? values[i] : values[i + half];
      const float kept = upper ? values[i + half] : values[i];
      values[i] = kept + shuffle_xor(given, half);
    }
  }
  float sum = values[0];
  VQ_UNROLL
  for (int mask = kCount; mask < 32; mask *= 2) sum += shuffle_xor(sum, mask);
  return sum;
}

}  // namespace vq
