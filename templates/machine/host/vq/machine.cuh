// The machine on the CPU: each thread of a block is a fiber, and everything beyond plain arithmetic
// is asked of the runner through vq::host::context. See ../../README.md for the contract.
// Defaulted __builtin_FILE / __builtin_LINE arguments are the caller's place, for reports.
#pragma once

#include <vq/annotations.h>
#include <vq/host_access.h>
#include <vq/host_api.h>
#include <vq/host_element.h>
#include <vq/types.h>

#define VQ_DEVICE inline __attribute__((always_inline))
#define VQ_UNROLL  // a host compiler need not: it changes no result and costs compile time

#define VQ_KERNEL(name, threads, Args)                                                    \
  static void name##_body(const Args& args);                                              \
  extern "C" [[gnu::visibility("default")]] void name(const void* raw_args) {             \
    name##_body(*static_cast<const Args*>(raw_args));                                     \
  }                                                                                       \
  extern "C" [[gnu::visibility("default")]] const vq::host::Entry vq_entry_##name;        \
  const vq::host::Entry vq_entry_##name = {vq::host::kApiVersion, threads,                \
                                           sizeof(Args),          &name,                  \
                                           &vq::host::context,    vq::host::kCheckRaces}; \
  static void name##_body([[maybe_unused]] const Args& args)

#define VQ_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace vq {

VQ_DEVICE int thread_index() { return host::context->thread; }
VQ_DEVICE int lane() { return thread_index() % 32; }
VQ_DEVICE int warp() { return thread_index() / 32; }
VQ_DEVICE int block_x() { return host::context->block[0]; }
VQ_DEVICE int block_y() { return host::context->block[1]; }
VQ_DEVICE int block_z() { return host::context->block[2]; }

VQ_DEVICE void sync_block(VQ_SITE) {
  host::context->synchronize(host::context, host::Collective::kSyncBlock, {file, line});
}
VQ_DEVICE void sync_warp(VQ_SITE) {
  host::context->synchronize(host::context, host::Collective::kSyncWarp, {file, line});
}
template <class T>
VQ_DEVICE T shuffle_xor(T value, int lane_mask, VQ_SITE) {
  static_assert(host::kOneOf<T, float, u32>, "shuffle_xor moves float and u32");
  return host::bits<T>(
      host::context->shuffle_xor(host::context, host::bits<u32>(value), lane_mask, {file, line}));
}

VQ_DEVICE u8* shared_memory() { return host::context->shared; }

template <class T>
VQ_DEVICE T load_global(const T* p, VQ_SITE) {
  host::check_global(host::Access::kLoadGlobal, p, {file, line});
  return host::load(p);
}
template <class T>
VQ_DEVICE void store_global(T* p, T value, VQ_SITE) {
  host::check_global(host::Access::kStoreGlobal, p, {file, line});
  host::store(p, value);
}
template <class T>
VQ_DEVICE T load_shared(const T* p, VQ_SITE) {
  host::check_shared(host::Access::kLoadShared, p, {file, line});
  return host::load(p);
}
template <class T>
VQ_DEVICE void store_shared(T* p, T value, VQ_SITE) {
  host::check_shared(host::Access::kStoreShared, p, {file, line});
  host::store(p, value);
}

VQ_DEVICE void copy_async(u32* shared, const u32* global, VQ_SITE) {
  host::check_shared(host::Access::kCopyAsync, shared, {file, line});
  host::check_global(host::Access::kCopyAsync, global, {file, line});
  host::context->copy_async(host::context, shared, global);
}
VQ_DEVICE void copy_async_commit() { host::context->copy_async_commit(host::context); }
template <int N>
VQ_DEVICE void copy_async_wait() {
  static_assert(N >= 0, "copy_async_wait waits until at most N >= 0 groups are pending");
  host::context->copy_async_wait(host::context, N);
}

template <Element E>
VQ_DEVICE float to_float(u16 element) {
  return E == Element::kF16 ? host::f16_to_float(element) : host::bf16_to_float(element);
}
template <Element E>
VQ_DEVICE u16 from_float(float value) {
  return E == Element::kF16 ? host::f16_from_float(value) : host::bf16_from_float(value);
}

VQ_DEVICE float exp2_approx(float x) { return __builtin_exp2f(x); }
VQ_DEVICE float log2_approx(float x) { return __builtin_log2f(x); }
VQ_DEVICE float infinity() { return __builtin_inff(); }

}  // namespace vq
