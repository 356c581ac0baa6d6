// Bulk copies, their barriers and counters in shared memory: all asked of the runner, which moves
// the bytes as late as it may (runtime/backend/host/bulk_copies.cpp).
#pragma once

#include <vq/annotations.h>
#include <vq/host_access.h>
#include <vq/host_api.h>
#include <vq/types.h>

namespace vq {

inline constexpr bool kHasBulkCopies = true;

namespace host {
// The race checker sees the barrier's word stored where it is initialized and read where it is
// used.
VQ_DEVICE void check_barrier(Access access, const u64* barrier, Site site) {
  check_shared(access, reinterpret_cast<const U32x2*>(barrier), site);
}
}  // namespace host
VQ_DEVICE void bulk_barrier_begin(u64* barrier, u32 arrivals = 1, VQ_SITE) {
  host::check_barrier(host::Access::kStoreShared, barrier, {file, line});
  host::context->bulk_begin(host::context, barrier, arrivals);
}
VQ_DEVICE void bulk_barrier_arrive(u64* barrier, VQ_SITE) {
  host::check_barrier(host::Access::kLoadShared, barrier, {file, line});
  host::context->bulk_arrive(host::context, barrier, 0, {file, line});
}
VQ_DEVICE void bulk_barrier_expect(u64* barrier, u32 bytes, VQ_SITE) {
  host::check_barrier(host::Access::kLoadShared, barrier, {file, line});
  host::context->bulk_arrive(host::context, barrier, bytes, {file, line});
}
VQ_DEVICE void bulk_barrier_wait(u64* barrier, u32 parity, VQ_SITE) {
  host::check_barrier(host::Access::kLoadShared, barrier, {file, line});
  host::context->bulk_wait(host::context, barrier, parity, {file, line});
}
VQ_DEVICE void copy_bulk(u8* shared, const u8* global, u32 bytes, u64* barrier, VQ_SITE) {
  const host::Site site{file, line};
  host::check_barrier(host::Access::kLoadShared, barrier, site);
  for (u32 i = 0; i < bytes; i += sizeof(U32x4)) {
    host::check_shared(host::Access::kCopyBulk, reinterpret_cast<const U32x4*>(shared + i), site);
    host::check_global(host::Access::kCopyBulk, reinterpret_cast<const U32x4*>(global + i), site);
  }
  host::context->bulk_copy(host::context, shared, global, bytes, barrier, site);
}
VQ_DEVICE u32 count_shared(u32* p, u32 last, VQ_SITE) {
  host::check_shared(host::Access::kCountShared, p, {file, line});
  const u32 old = host::load(p);
  host::store(p, old < last ? old + 1 : 0u);
  return old;
}

}  // namespace vq
