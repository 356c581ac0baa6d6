// The key transforms, and their inverse: applied to the query, q~ = q diag(lambda) H (VecInfer
// eq. 7), or to decoded keys.
#pragma once

#include <vq/machine.cuh>

namespace vq {

// 1 / sqrt(length) of a power of two.
VQ_HD constexpr float hadamard_scale(int length) {
  return length == 1   ? 1.0f
         : length == 2 ? 0.70710678118654752440f
                       : 0.5f * hadamard_scale(length / 4);
}

// Butterfly steps, in place, of a row that one lane holds: row <- row H, unscaled.
template <int kLength>
VQ_DEVICE void hadamard_steps(float (&row)[kLength]) {
  VQ_UNROLL
  for (int apart = 1; apart < kLength; apart *= 2) {
    VQ_UNROLL
    for (int j = 0; j < kLength; ++j) {
      if ((j & apart) != 0) continue;
      const float a = row[j];
      const float b = row[j + apart];
      row[j] = a + b;
      row[j + apart] = a - b;
    }
  }
}

// In place, row <- row H / sqrt(n): a row of kLength fp32, a power of two, over consecutive lanes
// with kOfLane each. Lane l has elements l + lanes j, or kOfLane l + j: H is the same for any bit
// order of element numbers. Lanes past the row keep zeros. All lanes of the warp.
template <int kLength, int kOfLane>
VQ_DEVICE void hadamard_row(float (&row)[kOfLane]) {
  static_assert((kLength & (kLength - 1)) == 0, "Hadamard needs a power of two");
  constexpr int kLanes = kLength / kOfLane;
  static_assert(kLanes * kOfLane == kLength && kLanes <= 32, "");
  constexpr float kScale = hadamard_scale(kLength);
  VQ_UNROLL
  for (int j = 0; j < kOfLane; ++j) row[j] *= kScale;
  VQ_UNROLL
  for (int span = 1; span < kLanes; span *= 2) {
    const float sign = (lane() & span) != 0 ? -1.0f : 1.0f;
    VQ_UNROLL
    for (int j = 0; j < kOfLane; ++j) row[j] = sign * row[j] + shuffle_xor(row[j], span);
  }
  hadamard_steps(row);
}

}  // namespace vq
