// The key transforms' inverse, applied to the query: q~ = q diag(lambda) H (VecInfer eq. 7).
#pragma once

#include <vq/machine.cuh>

namespace vq {

// In place, a row of kLength fp32, a power of two, held by a warp: lane l has elements l + 32 j.
// row <- row H / sqrt(n), by log2(n) butterfly steps; lanes past the row keep zeros.
template <int kLength, int kOfLane>
VQ_DEVICE void hadamard_row(float (&row)[kOfLane]) {
  static_assert((kLength & (kLength - 1)) == 0, "Hadamard needs a power of two");
  static_assert(kOfLane == (kLength + 31) / 32, "");
  // 1 / sqrt(2) a step keeps the transform orthonormal without a square root.
  constexpr float kStep = 0.70710678118654752440f;
  VQ_UNROLL
  for (int span = 1; span < kLength && span < 32; span *= 2) {
    const bool high = (lane() & span) != 0;
    VQ_UNROLL
    for (int j = 0; j < kOfLane; ++j) {
      const float other = shuffle_xor(row[j], span);
      row[j] = (high ? other - row[j] : row[j] + other) * kStep;
    }
  }
  VQ_UNROLL
  for (int apart = 1; apart < kOfLane; apart *= 2) {
    VQ_UNROLL
    for (int j = 0; j < kOfLane; ++j) {
      if ((j & apart) != 0) continue;
      const float a = row[j];
      const float b = row[j + apart];
      row[j] = (a + b) * kStep;
      row[j + apart] = (a - b) * kStep;
    }
  }
}

}  // namespace vq
