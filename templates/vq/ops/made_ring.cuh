// Producer/consumer pipeline of kPlaces stages in shared memory: some warps fill a stage while
// others read another. It needs no __syncthreads: consumers wait for producers, and producers wait
// for a stage's last consumer.
#pragma once

#include <vq/layout/launch.h>
#include <vq/machine.cuh>

namespace vq {

// Each warp has its own object; kMakers warps of the block make each chunk and kReaders read it.
template <int kPlaces, int kBytes, int kMakers, int kReaders>
class MadeRing {
 public:
  // Stages `places`, [kPlaces][kBytes], and `beside`, [kPlaces][kRingBesideBytes], are offsets in
  // shared memory, aligned to 16 bytes; `before` chunks have passed. Pointers are rebuilt from
  // shared_memory() each time: with one kept in a member, NVRTC 13.0 took stores for unreachable.
  VQ_DEVICE MadeRing(i64 places, i64 beside, u32 before = 0)
      : places_(places),
        beside_(beside),
        number_(static_cast<int>(before < kPlaces ? before : kPlaces)),
        place_(static_cast<int>(before % kPlaces)),
        phase_(before / kPlaces % 2) {}

  // One thread, before a sync_block for all others.
  VQ_DEVICE void begin() const {
    VQ_UNROLL
    for (int place = 0; place < kPlaces; ++place) {
      bulk_barrier_begin(made(place), kMakers);
      bulk_barrier_begin(read(place), kReaders);
    }
  }

  // Address of this chunk.
  VQ_DEVICE u8* chunk() const { return shared_part<u8>(places_ + place_ * kBytes); }
  VQ_DEVICE void advance() {
    if (number_ < kPlaces) ++number_;
    if (++place_ < kPlaces) return;
    place_ = 0;
    phase_ ^= 1u;
  }

  // All lanes of a reader: waits for this chunk; and has read the one before it.
  VQ_DEVICE void await() const { bulk_barrier_wait(made(place_), phase_); }
  VQ_DEVICE void give_back() const {
    sync_warp();
    if (lane() == 0) bulk_barrier_arrive(read(place_ == 0 ? kPlaces - 1 : place_ - 1));
  }

  // Both take all lanes of a producer: await_free() waits until nobody reads the stage, and the
  // other publishes the lanes' part of the chunk.
  VQ_DEVICE void await_free() const {
    if (number_ == kPlaces) bulk_barrier_wait(read(place_), phase_ ^ 1u);
  }
  VQ_DEVICE void hand_out() {
    sync_warp();
    if (lane() == 0) bulk_barrier_arrive(made(place_));
    advance();
  }

 private:
  VQ_DEVICE u64* made(int place) const {
    return shared_part<u64>(beside_ + place * kRingBesideBytes);
  }
  VQ_DEVICE u64* read(int place) const { return made(place) + 1; }

  i64 places_;
  i64 beside_;
  int number_;  // number of this chunk, at most kPlaces
  int place_;
  u32 phase_;
};

}  // namespace vq
