// Chunks that some warps of a block make in places of shared memory, in turn, while the others read
// them. No barrier of the block stands between them: a warp waits for makers where it is ahead of
// them, and makers wait for the last reader of what stands in the place.
#pragma once

#include <vq/layout/launch.h>
#include <vq/machine.cuh>

namespace vq {

// Each warp has its own, of a block where kMakers warps make each chunk and kReaders read it.
template <int kPlaces, int kBytes, int kMakers, int kReaders>
class MadeRing {
 public:
  // Where in shared memory `places`, [kPlaces][kBytes], and `beside`, [kPlaces][kRingBesideBytes],
  // begin: offsets, aligned to 16 bytes. Pointers of a chunk are made of shared_memory() anew: of
  // one that had been kept in a member, NVRTC 13.0 took stores for unreachable. `before` chunks
  // have been made and read.
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

  // Where this chunk stands.
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

  // All lanes of a maker: waits until nobody reads what stands there; and its part of the chunk
  // stands there.
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
  int number_;  // of this chunk, or kPlaces where it is more
  int place_;
  u32 phase_;
};

}  // namespace vq
