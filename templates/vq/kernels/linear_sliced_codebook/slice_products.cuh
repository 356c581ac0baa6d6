// The operands that slices of an entry are multiplied by: x as the sliced_codebook dataflow stages
// it (layout/linear.h), and sums of products. 16-bit entries multiply in fp32. With int8 entries x
// becomes 16-bit integers, scaled by the block's largest magnitude in the row: DP2A multiplies two
// per instruction, and integer sums are exact. A row with an infinite or NaN element has NaN sums.
#pragma once

#include <vq/codebook/entry.cuh>
#include <vq/ops/linear_work.cuh>

namespace vq {

template <Element kElement, bool kInt8, int kElements>
struct SliceProducts;

template <Element kElement, int kElements>
struct SliceProducts<kElement, false, kElements> {
  using Slice = EntryWords<kElements>;
  using Sum = float;

  VQ_DEVICE static void stage(u32* x, const float (&values)[kElements], float) {
    VQ_UNROLL
    for (int i = 0; i < kElements; ++i) x[i] = float_bits(values[i]);
  }
  VQ_DEVICE static void add(float& sum, const Slice& slice, const u32* x) {
    if constexpr (kElements == 1) {
      sum += to_float<kElement>(slice) * float_from_bits(x[0]);
    } else {
      float values[kElements] = {};
      add_entry<kElement>(values, slice, 1.0f);
      VQ_UNROLL
      for (int i = 0; i < kElements; ++i) sum += values[i] * float_from_bits(x[i]);
    }
  }
};

template <Element kElement, int kElements>
struct SliceProducts<kElement, true, kElements> {
  using Slice = EntryWords<kElements / 2>;
  using Sum = i32;

  // `factor` takes the largest magnitude to kSlicePeak.
  VQ_DEVICE static void stage(u32* x, const float (&values)[kElements], float factor) {
    VQ_UNROLL
    for (int i = 0; i < kElements; i += 2) {
      x[i / 2] = (static_cast<u32>(integer(values[i] * factor)) & 0xffffu) |
                 static_cast<u32>(integer(values[i + 1] * factor)) << 16;
    }
  }
  VQ_DEVICE static void add(i32& sum, const Slice& slice, const u32* x) {
    VQ_UNROLL
    for (int i = 0; i < kElements; i += 2)
      sum = dot2(x[i / 2], bytes(slice, i / 4), i / 2 % 2, sum);
  }

 private:
  // NaN comes only from a row whose peak is NaN.
  VQ_DEVICE static i32 integer(float value) {
    return nearest_within(value, static_cast<float>(kSlicePeak));
  }
  VQ_DEVICE static u32 bytes(u16 slice, int) { return slice; }
  template <class Words>
  VQ_DEVICE static u32 bytes(const Words& slice, int word) {
    return word_of(slice, word);
  }
};

}  // namespace vq
