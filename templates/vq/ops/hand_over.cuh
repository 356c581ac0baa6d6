// Tree reduction across warps that share output columns.
#pragma once

#include <vq/machine.cuh>

namespace vq {

// Tree reduction across the kAlong warps (a power of two) that share output columns, in kAcross
// groups; warp 0 of each group ends with the totals. `floats` is shared memory for kAlong / 2 *
// kAcross * 32 * kSums; sum(i) is a lane's i-th sum. All threads; warp along * kAcross + group.
template <int kAlong, int kAcross, int kSums, class Sum>
VQ_DEVICE void hand_over(float* floats, Sum sum) {
  const int along = warp() / kAcross;
  VQ_UNROLL
  for (int half = kAlong / 2; half > 0; half /= 2) {
    const int slot = along % half * kAcross + warp() % kAcross;
    float* const place = floats + slot * kSums * 32 + lane();
    sync_block();  // the memory has been read
    if (along >= half && along < 2 * half) {
      VQ_UNROLL
      for (int i = 0; i < kSums; ++i) store_shared(place + i * 32, sum(i));
    }
    sync_block();
    if (along < half) {
      VQ_UNROLL
      for (int i = 0; i < kSums; ++i) sum(i) += load_shared(place + i * 32);
    }
  }
}

}  // namespace vq
