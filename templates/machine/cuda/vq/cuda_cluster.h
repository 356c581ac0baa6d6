// Clusters of blocks of sm_90 and later in PTX: a barrier of all their threads, and loads from the
// shared memory of the others (mapa, ld.shared::cluster).
#pragma once

#include <vq/cuda_tensor.h>
#include <vq/types.h>

namespace vq {

// The warps are made whole first, as .aligned asks: the compiler does not know of it.
VQ_DEVICE void sync_cluster() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Waits for the same and orders no memory access, where the other waits for the thread's stores to
// global memory too: loads from peers whose values have been used are done.
VQ_DEVICE void leave_cluster() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

VQ_DEVICE u32 peer_address(const void* shared, int block) {
  u32 place;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(place)
      : "r"(shared_address(shared)), "r"(block));
  return place;
}
VQ_DEVICE U32x4 load_peer(const U32x4* shared, int block) {
  const u32 place = peer_address(shared, block);
  U32x4 words;
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(place)
               : "memory");
  return words;
}
VQ_DEVICE float load_peer(const float* shared, int block) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];"
               : "=f"(value)
               : "r"(peer_address(shared, block))
               : "memory");
  return value;
}

}  // namespace vq
