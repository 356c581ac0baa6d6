// The largest estimates of a row: four lanes keep the largest of their own columns and then merge
// their lists. Estimates are compared as integer bits, where sm_90 compares three at once;
// non-negative floats keep their order. Negative ones are below these but reversed: a list with
// them says only that no estimate is above 0.
#pragma once

#include <vq/machine.cuh>

namespace vq {

VQ_DEVICE i32 estimate_bits(float value) { return static_cast<i32>(float_bits(value)); }
VQ_DEVICE float estimate_value(i32 bits) { return float_from_bits(static_cast<u32>(bits)); }
VQ_DEVICE i32 larger_estimate(i32 a, i32 b) { return a > b ? a : b; }
VQ_DEVICE i32 smaller_estimate(i32 a, i32 b) { return a > b ? b : a; }
VQ_DEVICE i32 shuffle_xor_estimate(i32 bits, int mask) {
  return static_cast<i32>(shuffle_xor(static_cast<u32>(bits), mask));
}

inline constexpr i32 kNoEstimate = -0x7fffffff - 1;

// The largest first.
template <int kCount>
struct LargestEstimates {
  i32 bits[kCount];

  VQ_DEVICE void clear() {
    VQ_UNROLL
    for (int i = 0; i < kCount; ++i) bits[i] = kNoEstimate;
  }
  VQ_DEVICE void take(i32 estimate) {
    VQ_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const i32 lower = smaller_estimate(bits[i], estimate);
      bits[i] = larger_estimate(bits[i], estimate);
      estimate = lower;
    }
  }
  // Takes two estimates; with three kept this needs 8 comparisons instead of 10.
  VQ_DEVICE void take(i32 a, i32 b) {
    if constexpr (kCount == 3) {
      bits[1] = larger_estimate(bits[1], smaller_estimate(a, b));
      bits[2] = larger_estimate(bits[2], larger_estimate(a, b));
      // The three now, of which the second is no more than the larger of the others.
      const i32 lower = smaller_estimate(bits[0], bits[2]);
      bits[0] = larger_estimate(bits[0], bits[2]);
      bits[2] = smaller_estimate(bits[1], lower);
      bits[1] = larger_estimate(bits[1], lower);
    } else {
      take(a);
      take(b);
    }
  }
  // The largest.
  VQ_DEVICE void drop() {
    VQ_UNROLL
    for (int i = 1; i < kCount; ++i) bits[i - 1] = bits[i];
  }
};

// Merges four lanes' estimates of kSlots rows; this lane returns those of row lane() % 4 / (4 /
// kSlots). The last one also bounds what lanes did not keep, which is at most the last that each
// kept.
template <int kKept, int kOfLane, int kSlots>
VQ_DEVICE LargestEstimates<kKept> largest_of_row(
    const LargestEstimates<kOfLane> (&of_lane)[kSlots]) {
  static_assert(kOfLane <= kKept, "");
  LargestEstimates<kKept> all[kSlots];
  i32 others[kSlots];
  VQ_UNROLL
  for (int slot = 0; slot < kSlots; ++slot) {
    VQ_UNROLL
    for (int i = 0; i < kKept; ++i) {
      all[slot].bits[i] = i < kOfLane ? of_lane[slot].bits[i] : kNoEstimate;
    }
    others[slot] = of_lane[slot].bits[kOfLane - 1];
  }
  VQ_UNROLL
  for (int mask = 2; mask > 0; mask /= 2) {
    const int half = kSlots * mask / 4;
    const bool upper = (lane() & mask) != 0;
    VQ_UNROLL
    for (int slot = 0; slot < (half > 0 ? half : 1); ++slot) {
      LargestEstimates<kKept> keeps = all[slot], gives = all[slot];
      i32 keeps_others = others[slot], gives_others = others[slot];
      if (half > 0 && upper) {
        keeps = all[slot + half];
        keeps_others = others[slot + half];
      } else if (half > 0) {
        gives = all[slot + half];
        gives_others = others[slot + half];
      }
      VQ_UNROLL
      for (int i = 0; i < kKept; ++i) keeps.take(shuffle_xor_estimate(gives.bits[i], mask));
      all[slot] = keeps;
      others[slot] = larger_estimate(keeps_others, shuffle_xor_estimate(gives_others, mask));
    }
  }
  i32& last = all[0].bits[kKept - 1];
  last = larger_estimate(last, others[0]);
  return all[0];
}

}  // namespace vq
