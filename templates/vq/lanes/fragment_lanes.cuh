// Which part of an MMA operand a lane has. Comments call a lane (g, c):
//
//   g   lane_group()      0..7   PTX's groupID            row of operands a and c, column of b
//   c   place_in_group()  0..3   PTX's threadID_in_group  which words of that row or column
//
// The PTX ISA ("Matrix Fragments for mma.m16n8k16" and other shapes) and
// machine/host/vq/fragments.h list all elements. For ldmatrix lane 8 m + r gives the address of row
// r of matrix m.
#pragma once

#include <vq/machine.cuh>

namespace vq {

inline constexpr int kGroupLanes = 4;  // lanes below it are group 0
VQ_DEVICE int lane_group() { return lane() / kGroupLanes; }
VQ_DEVICE int place_in_group() { return lane() % kGroupLanes; }
VQ_DEVICE int group_pair() { return lane() / 8; }  // g / 2

VQ_DEVICE int ldmatrix_number() { return lane() / 8; }
VQ_DEVICE int ldmatrix_row() { return lane() % 8; }

// Sums each slot over kLanes lanes that follow each other, which exchange halves of their slots
// until each has the sum of one: kLanes / kSlots lanes have slot 0, the next as many slot 1, and so
// on.
template <int kLanes, int kSlots>
VQ_DEVICE float own_sum(float (&sums)[kSlots]) {
  constexpr int kMask = kLanes / 2;
  constexpr int kHalf = kSlots / 2;
  if constexpr (kMask > 0) {
    const bool upper = (lane() & kMask) != 0;
    if constexpr (kHalf == 0) {
      sums[0] += shuffle_xor(sums[0], kMask);
      return own_sum<kMask>(sums);
    } else {
      float halves[kHalf];
      VQ_UNROLL
      for (int slot = 0; slot < kHalf; ++slot) {
        const float gives = upper ? sums[slot] : sums[slot + kHalf];
        const float keeps = upper ? sums[slot + kHalf] : sums[slot];
        halves[slot] = keeps + shuffle_xor(gives, kMask);
      }
      return own_sum<kMask>(halves);
    }
  }
  return sums[0];
}

}  // namespace vq
