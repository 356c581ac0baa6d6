// The sums of warps that share the columns of their outputs become those of the first of them.
#pragma once

#include <vq/machine.cuh>

namespace vq {

// Of kAlong warps that share columns, a power of two, and kAcross such groups: half of them hand
// their sums to the other half at a time, through kAlong / 2 * kAcross * 32 * kSums floats of
// shared memory, and warp 0 of those along has all in the end. sum(i) is number i of a lane's. All
// threads; warps are numbered along first by kAcross.
template <int kAlong, int kAcross, int kSums, class Sum>
VQ_DEVICE void hand_over(float* floats, Sum sum) {
  const int along = warp() / kAcross;
  VQ_UNROLL
  for (int half = kAlong / 2; half > 0; half /= 2) {
    const int slot = along % half * kAcross + warp() % kAcross;
    float* const place = floats + slot * kSums * 32 + lane();
    sync_block();  // what stood there has been read
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
