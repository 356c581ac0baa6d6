// Bulk-copy pipeline of kPlaces stages in shared memory over contiguous chunks of global memory. It
// needs no __syncthreads: the last reader of a chunk issues the copy that replaces it, so a warp
// waits for another only when it is kPlaces chunks ahead.
#pragma once

#include <vq/layout/launch.h>
#include <vq/machine.cuh>

namespace vq {

// kReaders warps of the block read each chunk.
template <int kPlaces, int kBytes, int kReaders>
class BulkRing {
 public:
  // `places`: [kPlaces][kBytes] in shared memory, `beside`: [kPlaces][kRingBesideBytes]; `from`:
  // the block's `count` chunks. All aligned to 16 bytes. `before` chunks have been read.
  VQ_DEVICE BulkRing(u8* places, u8* beside, const u8* from, int count, u32 before = 0)
      : places_(places),
        beside_(beside),
        from_(from),
        count_(count),
        place_(static_cast<int>(before % kPlaces)),
        phase_(before / kPlaces % 2) {}

  // One thread, before a sync_block for all others; and the same, behind the launch that made the
  // chunks.
  VQ_DEVICE void begin() const {
    VQ_UNROLL
    for (int place = 0; place < kPlaces; ++place) {
      bulk_barrier_begin(barrier(place));
      store_shared(readers(place), 0u);
    }
  }
  VQ_DEVICE void ask_for_first() const {
    VQ_UNROLL
    for (int i = 0; i < kPlaces; ++i) ask_for(i, (place_ + i) % kPlaces);
  }

  // Address of this chunk; then the wait for it. All lanes of a warp.
  VQ_DEVICE u8* chunk() const { return chunk_at(place_); }
  VQ_DEVICE void await() const { bulk_barrier_wait(barrier(place_), phase_); }
  VQ_DEVICE void advance() {
    ++number_;
    if (++place_ < kPlaces) return;
    place_ = 0;
    phase_ ^= 1u;
  }
  // Says that the warp has read the previous chunk. All lanes.
  VQ_DEVICE void give_back() const {
    const int next = number_ - 1 + kPlaces;
    if (next >= count_) return;
    constexpr u32 kLast = kReaders - 1;
    const int before = place_ == 0 ? kPlaces - 1 : place_ - 1;
    sync_warp();
    if (lane() == 0 && count_shared(readers(before), kLast) == kLast) ask_for(next, before);
  }

 private:
  VQ_DEVICE u8* chunk_at(int place) const { return places_ + place * kBytes; }
  VQ_DEVICE u64* barrier(int place) const {
    return reinterpret_cast<u64*>(beside_ + place * kRingBesideBytes);
  }
  VQ_DEVICE u32* readers(int place) const { return reinterpret_cast<u32*>(barrier(place) + 1); }
  VQ_DEVICE void ask_for(int number, int place) const {
    if (number >= count_) return;
    bulk_barrier_expect(barrier(place), kBytes);
    copy_bulk(chunk_at(place), from_ + i64{number} * kBytes, kBytes, barrier(place));
  }

  u8* places_;
  u8* beside_;
  const u8* from_;
  int count_;
  int number_ = 0;
  int place_;
  u32 phase_;
};

}  // namespace vq
