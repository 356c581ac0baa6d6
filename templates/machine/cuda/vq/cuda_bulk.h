// Bulk copies of sm_90 and later in PTX: one thread asks for kilobytes, which pass no register and
// complete a phase of a barrier in shared memory (cp.async.bulk, mbarrier). Orders of accesses to
// shared memory between the threads that wait and the copies are the barrier's; where a thread has
// read what a copy is to replace, a counter (count_shared) or sync_block says so first.
#pragma once

#include <vq/cuda_tensor.h>
#include <vq/types.h>

namespace vq {

// The pass for the host, which nvcc makes of a text too, generates none of them.
#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
inline constexpr bool kHasBulkCopies = true;
#else
inline constexpr bool kHasBulkCopies = false;
#endif

// A template so that only its use is refused.
template <bool kAsked = true>
VQ_DEVICE void bulk_barrier_begin(u64* barrier, u32 arrivals = 1) {
  static_assert(!kAsked || kHasBulkCopies, "bulk copies need sm_90; ask kHasBulkCopies first");
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
VQ_DEVICE void bulk_barrier_expect(u64* barrier, u32 bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
VQ_DEVICE void bulk_barrier_arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
VQ_DEVICE void bulk_barrier_wait(u64* barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
VQ_DEVICE void copy_bulk(u8* shared, const u8* global, u32 bytes, u64* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Adds 1, or begins again at 0 behind `last`; returns the old value. Acquires and releases for the
// block, as atomic_add_global for the device.
VQ_DEVICE u32 count_shared(u32* pointer, u32 last) {
  u32 old;
  asm volatile("atom.acq_rel.cta.shared::cta.inc.u32 %0, [%1], %2;"
               : "=r"(old)
               : "r"(shared_address(pointer)), "r"(last)
               : "memory");
  return old;
}

}  // namespace vq
