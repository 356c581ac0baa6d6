// The machine layer on CUDA: the primitives of templates/machine/README.md in PTX and compiler
// builtins, for sm_75 and later. Needs no toolkit header, so that NVRTC compiles it without -I;
// 16-bit elements are bits, converted by cvt or integer rounding. This file and its cuda_*.h are
// the only ones of the templates that ask for the architecture: cp.async begins with sm_80.
#pragma once

#include <vq/annotations.h>
#include <vq/cuda_bulk.h>
#include <vq/cuda_cluster.h>
#include <vq/cuda_schedule.h>
#include <vq/cuda_tensor.h>
#include <vq/cuda_warpgroup.h>
#include <vq/types.h>

namespace vq {

VQ_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
VQ_DEVICE int lane() { return thread_index() % 32; }
VQ_DEVICE int warp() { return thread_index() / 32; }
VQ_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
VQ_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
VQ_DEVICE int block_z() { return static_cast<int>(blockIdx.z); }

VQ_DEVICE void sync_block() { __syncthreads(); }
VQ_DEVICE void sync_warp() { __syncwarp(); }

// A builtin, not asm: the compiler must know that no lane may be parted from the others here.
VQ_DEVICE u32 shuffle_xor(u32 value, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}
VQ_DEVICE float shuffle_xor(float value, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}

VQ_DEVICE u32 shuffle(u32 value, int source_lane) {
  return __shfl_sync(0xffffffffu, value, source_lane);
}
VQ_DEVICE float shuffle(float value, int source_lane) {
  return __shfl_sync(0xffffffffu, value, source_lane);
}

VQ_DEVICE bool any_of_warp(bool mine) { return __any_sync(0xffffffffu, mine) != 0; }
VQ_DEVICE int ones_of(u64 bits) { return __popcll(bits); }
// The largest of all lanes, from sm_80 on in one instruction.
VQ_DEVICE u32 largest_of_warp(u32 mine) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffffu, mine);
#else
  for (int mask = 16; mask > 0; mask /= 2) mine = max(mine, shuffle_xor(mine, mask));
  return mine;
#endif
}

VQ_DEVICE u8* shared_memory() {
  extern __shared__ __align__(128) unsigned char vq_dynamic_shared[];
  return vq_dynamic_shared;
}

// The types that move as one access.
template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;
template <class T, class... Allowed>
constexpr bool kOneOf = (kSame<T, Allowed> || ...);
template <class T>
constexpr bool kIsAccess = kOneOf<T, u8, u16, u32, i32, float, U32x2, U32x4>;

// Loads what no launch writes, before after_last_launch() too, by the read-only path
// (ld.global.nc), which the compiler may reorder.
template <class T>
VQ_DEVICE T load_constant(const T* pointer) {
  static_assert(kIsAccess<T>, "load_constant: u8, u16, u32, i32, float, U32x2 or U32x4");
  if constexpr (sizeof(T) == 16) {
    const uint4 words = __ldg(reinterpret_cast<const uint4*>(pointer));
    return {words.x, words.y, words.z, words.w};
  } else if constexpr (sizeof(T) == 8) {
    const uint2 words = __ldg(reinterpret_cast<const uint2*>(pointer));
    return {words.x, words.y};
  } else {
    return __ldg(pointer);
  }
}
// Loads what no thread of this launch writes. From sm_90 on it is a plain access: the read-only
// path is not ordered after after_last_launch(), before which memory may change.
template <class T>
VQ_DEVICE T load_global(const T* pointer) {
  static_assert(kIsAccess<T>, "load_global: u8, u16, u32, i32, float, U32x2 or U32x4");
#if __CUDA_ARCH__ >= 900
  __builtin_assume(__isGlobal(pointer));
  return *pointer;
#else
  return load_constant(pointer);
#endif
}
// load_constant() issued where it is written: before the wait, if that follows.
template <class T>
VQ_DEVICE T begin_constant(const T* pointer) {
  return load_global(pointer);
}

// begin_constant() for data that is read once and in order: bypasses L1 and prefetches the 256
// bytes around it to L2, so that rows which many warps read a little at a time come from DRAM in
// larger pieces.
template <class T>
VQ_DEVICE T stream_constant(const T* pointer) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(T) == 16) {
    T words;
    asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(pointer));
    return words;
  }
#endif
  return begin_constant(pointer);
}

// `pointer` and count * bytes on, which the compiler would make three instructions of.
template <class T>
VQ_DEVICE const T* wide_step(const T* pointer, u32 count, u32 bytes) {
  const T* result;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(result) : "r"(count), "r"(bytes), "l"(pointer));
  return result;
}
// Brings the 32 bytes at `pointer` to the L2 cache, maybe; no fault where nothing is mapped.
VQ_DEVICE void prefetch_global(const void* pointer) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
}

// The assumptions name the address space, so that ld.shared and st.global replace generic accesses.
// Plain accesses, not asm, leave scheduling to the compiler.
template <class T>
VQ_DEVICE T load_shared(const T* pointer) {
  static_assert(kIsAccess<T> && sizeof(T) > 1, "load_shared: u16, u32, i32, float, U32x2 or U32x4");
  __builtin_assume(__isShared(pointer));
  return *pointer;
}

// 32-bit addresses of shared memory, for arithmetic of one instruction.
VQ_DEVICE u32 shared_place(const u8* pointer) { return shared_address(pointer); }
template <class T>
VQ_DEVICE T load_shared_at(u32 place) {
  return load_shared(static_cast<const T*>(__cvta_shared_to_generic(place)));
}
template <class T>
VQ_DEVICE void store_shared(T* pointer, T value) {
  static_assert(kIsAccess<T> && sizeof(T) > 1,
                "store_shared: u16, u32, i32, float, U32x2 or U32x4");
  __builtin_assume(__isShared(pointer));
  *pointer = value;
}
template <class T>
VQ_DEVICE void store_global(T* pointer, T value) {
  static_assert(kIsAccess<T>, "store_global: u8, u16, u32, i32, float, U32x2 or U32x4");
  if constexpr (sizeof(T) == 16) {  // NVVM would store words that were computed one by one
    asm volatile(
        "st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(pointer)),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
        : "memory");
  } else {
    __builtin_assume(__isGlobal(pointer));
    *pointer = value;
  }
}

// Loads what other threads of the launch write: bypasses L1 and the read-only path, ordered by
// atomic_add_global and the barriers.
template <class T>
VQ_DEVICE T load_global_coherent(const T* pointer) {
  static_assert(kOneOf<T, u16, u32, i32, float, U32x4>,
                "load_global_coherent: u16, u32, i32, float or U32x4");
  if constexpr (sizeof(T) == 16) {
    T words;
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(pointer)
                 : "memory");
    return words;
  } else if constexpr (sizeof(T) == 2) {
    T value;
    asm volatile("ld.relaxed.gpu.global.b16 %0, [%1];" : "=h"(value) : "l"(pointer) : "memory");
    return value;
  } else {
    union {
      u32 bits;
      T value;
    } word;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(word.bits) : "l"(pointer) : "memory");
    return word.value;
  }
}

// Returns the old value. Acquires and releases: what this thread, and through sync_block its block,
// stored before is seen by who adds later and then loads coherently.
VQ_DEVICE u32 atomic_add_global(u32* pointer, u32 value) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(pointer), "r"(value)
               : "memory");
  return old;
}

// Adds, and orders nothing: later launches see the sum.
VQ_DEVICE void add_global(u64* pointer, u64 value) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(pointer), "l"(value) : "memory");
}

// Adds within the block: other threads see the sum behind a barrier.
VQ_DEVICE void add_shared(u32* pointer, u32 value) {
  asm volatile("red.relaxed.cta.shared.add.u32 [%0], %1;" ::"r"(shared_address(pointer)), "r"(value)
               : "memory");
}

// Copies 4, 8 or 16 bytes past the registers; they land at the wait for the thread's group.
#if __CUDA_ARCH__ >= 800
template <class T>
VQ_DEVICE void copy_async(T* shared, const T* global) {
  static_assert(kOneOf<T, u32, U32x2, U32x4>, "copy_async: u32, U32x2 or U32x4");
  if constexpr (sizeof(T) == 16) {  // past L1, too
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)),
                 "l"(global)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)),
                 "l"(global), "n"(static_cast<int>(sizeof(T)))
                 : "memory");
  }
}
// Puts this thread's copies since the last commit into one group.
VQ_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Blocks this thread until at most N of its newest groups are in flight.
template <int N>
VQ_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#else
template <class T>
VQ_DEVICE void copy_async(T* shared, const T* global) {
  store_shared(shared, load_global(global));
}
VQ_DEVICE void copy_async_commit() {}
template <int N>
VQ_DEVICE void copy_async_wait() {}
#endif
// copy_async() from memory that no launch writes, before after_last_launch() too.
template <class T>
VQ_DEVICE void copy_constant_async(T* shared, const T* global) {
  copy_async(shared, global);
}

// Exact, subnormals too.
template <Element E>
VQ_DEVICE float to_float(u16 bits) {
  if constexpr (E == Element::bf16) return __uint_as_float(static_cast<u32>(bits) << 16);
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
// Rounds to nearest even; overflow gives infinity. bf16 in integers, since cvt to it begins with
// sm_80: adds half of the last place kept, ties to even.
template <Element E>
VQ_DEVICE u16 from_float(float value) {
  if constexpr (E == Element::f16) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
  } else {
    const u32 bits = __float_as_uint(value);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<u16>(is_nan ? (bits >> 16) | 0x40u : rounded);
  }
}

// Two floats rounded to nearest even, `low` in the low half.
template <Element E>
VQ_DEVICE u32 pack2(float low, float high) {
#if __CUDA_ARCH__ >= 800
  u32 pair;
  if constexpr (E == Element::f16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  return static_cast<u32>(from_float<E>(high)) << 16 | from_float<E>(low);
#endif
}
// Two 16-bit sums, each rounded to nearest even. bf16 has a sum of its own from sm_90 on, the same
// by fma from sm_80 on, and before that by way of floats, where it is exact until it is rounded.
template <Element E>
VQ_DEVICE u32 add2(u32 a, u32 b) {
  if constexpr (E == Element::f16) {
    u32 sums;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sums) : "r"(a), "r"(b));
    return sums;
  } else {
#if __CUDA_ARCH__ >= 800
    u32 sums;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sums) : "r"(a), "r"(0x3f803f80u), "r"(b));
    return sums;
#else
    const auto low = [](u32 pair) { return to_float<E>(static_cast<u16>(pair)); };
    return pack2<E>(low(a) + low(b), low(a >> 16) + low(b >> 16));
#endif
  }
}
// a b + c of two pairs, each rounded once; in bf16 before sm_80 by way of fp32.
template <Element E>
VQ_DEVICE u32 fused2(u32 a, u32 b, u32 c) {
  u32 sums;
  if constexpr (E == Element::f16) {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sums) : "r"(a), "r"(b), "r"(c));
  } else {
#if __CUDA_ARCH__ >= 800
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sums) : "r"(a), "r"(b), "r"(c));
#else
    const auto low = [](u32 pair) { return to_float<E>(static_cast<u16>(pair)); };
    sums = pack2<E>(__fmaf_rn(low(a), low(b), low(c)),
                    __fmaf_rn(low(a >> 16), low(b >> 16), low(c >> 16)));
#endif
  }
  return sums;
}
// (a & mask) | bits by one LOP3, which takes one of two constants from a register; the compiler
// makes two instructions of it.
VQ_DEVICE u32 masked_or(u32 a, u32 mask, u32 bits) {
  u32 result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(a), "r"(mask), "r"(bits));
  return result;
}
VQ_DEVICE u32 add_scaled_byte(u32 bytes, int byte, u32 factor, u32 addend) {
  const u32 factors = factor << 16 * (byte & 1);  // the two bytes that the instruction takes
  u32 sum;
  if (byte < 2) {
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(factors), "r"(bytes), "r"(addend));
  } else {
    asm("dp2a.hi.u32.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(factors), "r"(bytes), "r"(addend));
  }
  return sum;
}
VQ_DEVICE i32 dot2(u32 halves, u32 bytes, int pair, i32 addend) {
  i32 sum;
  if (pair == 0) {
    asm("dp2a.lo.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(halves), "r"(bytes), "r"(addend));
  } else {
    asm("dp2a.hi.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(halves), "r"(bytes), "r"(addend));
  }
  return sum;
}
VQ_DEVICE u32 byte_permute(u32 a, u32 b, u32 selector) {
  u32 bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selector));
  return bytes;
}
// One instruction from sm_90 on.
VQ_DEVICE u32 larger_halves(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 900
  u32 halves;
  asm("max.u16x2 %0, %1, %2;" : "=r"(halves) : "r"(a), "r"(b));
  return halves;
#else
  const u32 low = (a & 0xffffu) > (b & 0xffffu) ? a : b;
  const u32 high = a >> 16 > b >> 16 ? a : b;
  return byte_permute(low, high, 0x7610u);
#endif
}
// a * b + c, rounded once.
VQ_DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
// The larger and the smaller one; a NaN is passed over.
VQ_DEVICE float larger(float a, float b) { return fmaxf(a, b); }
VQ_DEVICE float smaller(float a, float b) { return fminf(a, b); }
VQ_DEVICE float ceiling(float value) { return ceilf(value); }
// 1 / x within 1 ulp in one instruction, x and result of normal magnitude.
VQ_DEVICE float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// 2^x within 2 ulp in one instruction; results below 2^-126 are 0.
VQ_DEVICE float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
VQ_DEVICE float reciprocal_approx(float x) { return __fdividef(1.0f, x); }
// log2 x, absolute error within 2^-22 near 1, subnormals kept.
VQ_DEVICE float log2_approx(float x) {
  float result;
  asm("lg2.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
VQ_DEVICE u32 float_bits(float value) { return __float_as_uint(value); }
VQ_DEVICE float float_from_bits(u32 bits) { return __uint_as_float(bits); }
VQ_DEVICE float infinity() { return __uint_as_float(0x7f800000u); }

}  // namespace vq
