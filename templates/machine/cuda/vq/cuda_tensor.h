// Tensor cores and matrix moves between lanes, in PTX, with the fragment layout of
// templates/machine/host/vq/fragments.h. All 32 lanes of a warp call each function together;
// volatile keeps them converged.
#pragma once

#include <vq/annotations.h>
#include <vq/types.h>

namespace vq {

// C += A B of one instruction, whose sums are of `kind`: "+f" or "+r".
#define VQ_MMA(shape_and_types, kind)                                             \
  asm volatile("mma.sync.aligned." shape_and_types                                \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : kind(c[0]), kind(c[1]), kind(c[2]), kind(c[3])                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

#if __CUDA_ARCH__ >= 800
template <Element E>
constexpr bool kHasMma = true;
inline constexpr bool kHasMmaS8 = true;

VQ_DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  VQ_MMA("m16n8k16.row.col.f32.f16.f16.f32", "+f");
}
#else
template <Element E>
constexpr bool kHasMma = E == Element::f16;
inline constexpr bool kHasMmaS8 = false;

// sm_75 has half of it an instruction: k in two steps of 8.
VQ_DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  VQ_UNROLL
  for (int k = 0; k < 2; ++k) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
  }
}
#endif

template <Element E>
VQ_DEVICE void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  static_assert(kHasMma<E>, "mma_m16n8k16: bf16 needs sm_80; ask kHasMma first");
  if constexpr (E == Element::f16) {
    mma_f16(c, a, b);
  } else {
    VQ_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "+f");
  }
}

// A template so that only its use is refused.
template <bool kAsked = true>
VQ_DEVICE void mma_m16n8k32_s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  static_assert(!kAsked || kHasMmaS8, "mma_m16n8k32_s8 needs sm_80; ask kHasMmaS8 first");
  VQ_MMA("m16n8k32.row.col.s32.s8.s8.s32", "+r");
}
// mma_m16n8k32_s8 with b of unsigned bytes.
template <bool kAsked = true>
VQ_DEVICE void mma_m16n8k32_s8_u8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  static_assert(!kAsked || kHasMmaS8, "mma_m16n8k32_s8_u8 needs sm_80; ask kHasMmaS8 first");
  VQ_MMA("m16n8k32.row.col.s32.s8.u8.s32", "+r");
}
// mma_m16n8k32_s8 with a of unsigned bytes.
template <bool kAsked = true>
VQ_DEVICE void mma_m16n8k32_u8_s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  static_assert(!kAsked || kHasMmaS8, "mma_m16n8k32_u8_s8 needs sm_80; ask kHasMmaS8 first");
  VQ_MMA("m16n8k32.row.col.s32.u8.s8.s32", "+r");
}

// The address in the window of shared memory, as PTX takes it.
VQ_DEVICE u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}
VQ_DEVICE void ldmatrix_x2(u32 (&d)[2], const u32* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(d[0]), "=r"(d[1])
               : "r"(shared_address(row))
               : "memory");
}
VQ_DEVICE void ldmatrix_x4(u32 (&d)[4], const u32* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared_address(row))
               : "memory");
}
VQ_DEVICE void ldmatrix_x4_trans(u32 (&d)[4], const u32* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared_address(row))
               : "memory");
}
VQ_DEVICE u32 movmatrix_trans(u32 word) {
  u32 moved;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(moved) : "r"(word));
  return moved;
}

}  // namespace vq
