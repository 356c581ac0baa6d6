// wgmma of sm_90a in PTX: four warps multiply a, in their registers, by b in shared memory, which a
// descriptor names (vq/layout/core_matrices.h), and go on while the tensor cores work. Each number
// of columns is an instruction of its own with all its sums; the powers of two are built.
#pragma once

#include <vq/cuda_tensor.h>
#include <vq/layout/core_matrices.h>
#include <vq/types.h>

namespace vq {

// The pass for the host, which nvcc makes of a text too, generates none of them.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
inline constexpr bool kHasWarpgroupMma = true;
#else
inline constexpr bool kHasWarpgroupMma = false;
#endif

// Orders writes of registers before the products that follow; and stores to shared memory before
// the reads of products that begin after the next sync_block.
VQ_DEVICE void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;"); }
VQ_DEVICE void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;"); }
template <int N>
VQ_DEVICE void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N));
}
VQ_DEVICE void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Keeps uses of the registers on their side of this place: products work on them unseen.
template <int kCount>
VQ_DEVICE void warpgroup_hold(float (&values)[kCount]) {
  VQ_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i]));
}
template <int kCount>
VQ_DEVICE void warpgroup_hold(i32 (&values)[kCount]) {
  VQ_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i]));
}

// The word in another register, which is written here and not before: products in flight may still
// read what the compiler would write instead, were it a mere name for `word`.
VQ_DEVICE u32 warpgroup_copy(u32 word) {
  u32 copy;
  asm volatile("mov.b32 %0, %1;" : "=r"(copy) : "r"(word));
  return copy;
}

VQ_DEVICE u64 warpgroup_operand(const u8* shared, int octet_bytes, int rows_bytes) {
  return core_descriptor(shared_address(shared), octet_bytes, rows_bytes);
}

#define VQ_SUMS4(kind, i) kind(c[i]), kind(c[i + 1]), kind(c[i + 2]), kind(c[i + 3])
#define VQ_SUMS8(kind, i) VQ_SUMS4(kind, i), VQ_SUMS4(kind, i + 4)
#define VQ_SUMS16(kind, i) VQ_SUMS8(kind, i), VQ_SUMS8(kind, i + 8)
#define VQ_SUMS32(kind, i) VQ_SUMS16(kind, i), VQ_SUMS16(kind, i + 16)
#define VQ_SUMS64(kind, i) VQ_SUMS32(kind, i), VQ_SUMS32(kind, i + 32)
#define VQ_SUMS128(kind, i) VQ_SUMS64(kind, i), VQ_SUMS64(kind, i + 64)
#define VQ_NAMES4 "%0, %1, %2, %3"
#define VQ_NAMES8 \
  VQ_NAMES4       \
  ", %4, %5, %6, %7"
#define VQ_NAMES16 \
  VQ_NAMES8        \
  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define VQ_NAMES32 \
  VQ_NAMES16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define VQ_NAMES64                                                                   \
  VQ_NAMES32                                                                         \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define VQ_NAMES128                                                                              \
  VQ_NAMES64                                                                                     \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define VQ_WARPGROUP_MMA(columns, type, names, sums, a0, a1, a2, a3, operand)                   \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" names \
               "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #operand ", 1, 1, 1, 0;"        \
               : sums("+f", 0)                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define VQ_WARPGROUP_MMAS(columns, names, sums, a0, a1, a2, a3, operand)     \
  if constexpr (E == Element::f16) {                                         \
    VQ_WARPGROUP_MMA(columns, "f16", names, sums, a0, a1, a2, a3, operand);  \
  } else {                                                                   \
    VQ_WARPGROUP_MMA(columns, "bf16", names, sums, a0, a1, a2, a3, operand); \
  }

template <Element E, int kColumns>
VQ_DEVICE void warpgroup_mma(float (&c)[kColumns / 2], const u32 (&a)[4], u64 b) {
  static_assert(kColumns == 0 || kHasWarpgroupMma,
                "warpgroup_mma needs sm_90a; ask kHasWarpgroupMma first");
  static_assert(kColumns == 8 || kColumns == 16 || kColumns == 32 || kColumns == 64 ||
                    kColumns == 128 || kColumns == 256,
                "warpgroup_mma: a power of two of columns from 8 to 256");
  if constexpr (kColumns == 8) {
    VQ_WARPGROUP_MMAS(8, VQ_NAMES4, VQ_SUMS4, 4, 5, 6, 7, 8)
  } else if constexpr (kColumns == 16) {
    VQ_WARPGROUP_MMAS(16, VQ_NAMES8, VQ_SUMS8, 8, 9, 10, 11, 12)
  } else if constexpr (kColumns == 32) {
    VQ_WARPGROUP_MMAS(32, VQ_NAMES16, VQ_SUMS16, 16, 17, 18, 19, 20)
  } else if constexpr (kColumns == 64) {
    VQ_WARPGROUP_MMAS(64, VQ_NAMES32, VQ_SUMS32, 32, 33, 34, 35, 36)
  } else if constexpr (kColumns == 128) {
    VQ_WARPGROUP_MMAS(128, VQ_NAMES64, VQ_SUMS64, 64, 65, 66, 67, 68)
  } else if constexpr (kColumns == 256) {
    VQ_WARPGROUP_MMAS(256, VQ_NAMES128, VQ_SUMS128, 128, 129, 130, 131, 132)
  }
}

// wgmma of signed bytes, 64x32 by 32xN, with integer sums.
#define VQ_WARPGROUP_MMA_S8(columns, names, sums, a0, a1, a2, a3, operand)                      \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k32.s32.s8.s8 {" names "}, {%" #a0 \
               ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #operand ", 1;"                             \
               : sums("+r", 0)                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

template <int kColumns>
VQ_DEVICE void warpgroup_mma_s8(i32 (&c)[kColumns / 2], const u32 (&a)[4], u64 b) {
  static_assert(kColumns == 0 || kHasWarpgroupMma,
                "warpgroup_mma_s8 needs sm_90a; ask kHasWarpgroupMma first");
  static_assert(kColumns == 8 || kColumns == 16 || kColumns == 32 || kColumns == 64 ||
                    kColumns == 128 || kColumns == 256,
                "warpgroup_mma_s8: a power of two of columns from 8 to 256");
  if constexpr (kColumns == 8) {
    VQ_WARPGROUP_MMA_S8(8, VQ_NAMES4, VQ_SUMS4, 4, 5, 6, 7, 8);
  } else if constexpr (kColumns == 16) {
    VQ_WARPGROUP_MMA_S8(16, VQ_NAMES8, VQ_SUMS8, 8, 9, 10, 11, 12);
  } else if constexpr (kColumns == 32) {
    VQ_WARPGROUP_MMA_S8(32, VQ_NAMES16, VQ_SUMS16, 16, 17, 18, 19, 20);
  } else if constexpr (kColumns == 64) {
    VQ_WARPGROUP_MMA_S8(64, VQ_NAMES32, VQ_SUMS32, 32, 33, 34, 35, 36);
  } else if constexpr (kColumns == 128) {
    VQ_WARPGROUP_MMA_S8(128, VQ_NAMES64, VQ_SUMS64, 64, 65, 66, 67, 68);
  } else if constexpr (kColumns == 256) {
    VQ_WARPGROUP_MMA_S8(256, VQ_NAMES128, VQ_SUMS128, 128, 129, 130, 131, 132);
  }
}

}  // namespace vq
