// What merging splits takes, whoever does it: loads of several splits in flight that are used in
// the order of the splits, so that the bits of a sum depend neither on who merges nor on when; and
// how a block learns that it is the last.
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

// How a partial is read by a block of the launch that stored it; by a kernel of its own, by
// LoadGlobal.
struct LoadOfThisLaunch {
  VQ_DEVICE float operator()(const float* pointer) const { return load_global_coherent(pointer); }
};

// Called once by all threads of each of `blocks` blocks when their partials are stored and a word
// of shared memory, at `shared`, is no longer needed: true in the block that calls last, which may
// then load the partials of all with load_global_coherent. `counter` is 0 before the first call and
// after the last.
//
// The barrier hands the stores of the block's threads to one of them, whose addition releases them
// all to the device: a fence a thread would wait for the same stores once a warp.
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
