// Merging of splits: loads of several splits are in flight but used in split order, so that the
// bits of a sum depend neither on who merges nor on when; and the test for the last block.
#pragma once

#include <vq/layout/launch.h>
#include <vq/loads.cuh>

namespace vq {

// use(load(0)), use(load(1)), .. use(load(kCount - 1)), with kInFlight loads begun at once.
template <int kCount, int kInFlight, class Load, class Use>
VQ_DEVICE void in_order(Load load, Use use) {
  constexpr int kRest = kCount % kInFlight;
  for (int first = 0; first < kCount - kRest; first += kInFlight) {
    decltype(load(0)) loaded[kInFlight];
    VQ_UNROLL
    for (int i = 0; i < kInFlight; ++i) loaded[i] = load(first + i);
    VQ_UNROLL
    for (int i = 0; i < kInFlight; ++i) use(loaded[i]);
  }
  if constexpr (kRest > 0) {
    decltype(load(0)) loaded[kRest];
    VQ_UNROLL
    for (int i = 0; i < kRest; ++i) loaded[i] = load(kCount - kRest + i);
    VQ_UNROLL
    for (int i = 0; i < kRest; ++i) use(loaded[i]);
  }
}

// Loads a partial that a block of this launch stored; a separate kernel uses LoadGlobal.
struct LoadOfThisLaunch {
  VQ_DEVICE float operator()(const float* pointer) const { return load_global_coherent(pointer); }
};

// True in the last of `blocks` blocks to call it: it may load all partials by load_global_coherent.
// All threads call it once, after their stores; it overwrites the word at `shared`, and `counter`
// is 0 before and after. One thread releases all stores after a barrier: a fence each would wait
// more.
VQ_DEVICE bool is_last_of(int blocks, u32* counter, i64 shared = 0) {
  u32* const told = shared_part<u32>(shared);
  sync_block();
  if (thread_index() == 0) {
    const bool last = atomic_add_global(counter, 1u) == static_cast<u32>(blocks - 1);
    if (last) store_global(counter, 0u);  // for the next launch
    store_shared(told, last ? 1u : 0u);
  }
  sync_block();
  return load_shared(told) != 0;
}

}  // namespace vq
