// The key transforms' inverse, applied to the query: q~ = q diag(lambda) H (VecInfer eq. 7).
#pragma once

#include <vq/machine.cuh>

namespace vq {

// In place, rows of kLength fp32 in shared memory, kLength a power of two: row <- row H / sqrt(n),
// by log2(n) butterfly steps with a barrier each. All threads of the block call it together.
template <int kLength, int kRows, int kThreads>
VQ_DEVICE void hadamard_rows(float* rows) {
  static_assert((kLength & (kLength - 1)) == 0, "Hadamard needs a power of two");
  // 1 / sqrt(2) a step keeps the transform orthonormal without a square root.
  constexpr float kStep = 0.70710678118654752440f;
  for (int span = 1; span < kLength; span *= 2) {
    for (int i = thread_index(); i < kRows * kLength / 2; i += kThreads) {
      float* low = rows + (i / span) * 2 * span + i % span;
      const float a = load_shared(low);
      const float b = load_shared(low + span);
      store_shared(low, (a + b) * kStep);
      store_shared(low + span, (a - b) * kStep);
    }
    sync_block();
  }
}

}  // namespace vq
