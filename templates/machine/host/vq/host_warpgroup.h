// What a product of a warp group does once all its 128 threads have arrived. It is multiplied there
// and then, from what shared memory holds; that the GPU goes on reading until the threads have
// waited is the runner's to remember (warpgroup_read), which looks again then.
#pragma once

#include <vq/host_warp.h>
#include <vq/layout/core_matrices.h>

namespace vq::host {

inline constexpr int kGroupThreads = 128;

struct WarpgroupOperands {
  float* c;
  const u32* a;
  u64 b;
};

// Sums in the order of k, each product exact in fp32; NaN for a thread whose descriptor is not that
// of thread 0, for the instruction has but one.
template <Element E, int kColumns>
Refusal warpgroup_mma(void* const* operands) {
  const auto widen = E == Element::f16 ? f16_to_float : bf16_to_float;
  const u64 descriptor = of<WarpgroupOperands>(operands, 0).b;
  float b[16][kColumns];
  for (int n = 0; n < kColumns; ++n) {
    for (int octet = 0; octet < 2; ++octet) {
      const u8* row = context->shared + core_row(descriptor, n, octet);
      for (int i = 0; i < 8; ++i) {
        b[octet * 8 + i][n] = widen(load(reinterpret_cast<const u16*>(row) + i));
      }
    }
  }
  for (int first = 0; first < kGroupThreads; first += kLanes) {
    float a[16][16];
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < 8; ++i) {
        const fragment::Place at = fragment::a_m16n8k16(lane, i);
        const u32* words = of<WarpgroupOperands>(operands, first + lane).a;
        a[at.row][at.column] = widen(half_of(words[i / 2], i % 2));
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto& mine = of<WarpgroupOperands>(operands, first + lane);
      for (int i = 0; i < kColumns / 2; ++i) {
        const fragment::Place at = fragment::c_m64n(lane, i);
        for (int k = 0; k < 16; ++k) mine.c[i] += a[at.row][k] * b[k][at.column];
        if (mine.b != descriptor) mine.c[i] = bits<float>(~u32{0});
      }
    }
  }
  return kDone;
}

}  // namespace vq::host
