// What brings the numbers of a group of inputs to size (layout/group_scales.h): a scale, or a scale
// and a minimum that is subtracted. In fp32, or as pairs of 16-bit elements.
#pragma once

#include <vq/layout/group_scales.h>
#include <vq/machine.cuh>

namespace vq {

struct ScaleAndMinimum {
  float scale;
  float minimum;
};
// Pairs of the scale, and of minus the minimum.
struct PairedTerms {
  u32 scale;
  u32 offset;
};

// The factor of a group: of its number, and of the f16 of its 256 inputs.
template <int kBits, bool kMinima>
VQ_DEVICE auto group_factor(u32 number, u32 of_block) {
  const auto half = [](u32 bits) {
    return to_float<Element::f16>(static_cast<u16>(bits & 0xffffu));
  };
  if constexpr (!kMinima) {
    if constexpr (kBits == 0) {
      return half(number);
    } else {
      return half(of_block) * static_cast<float>(2 * number + 1);
    }
  } else if constexpr (kBits == 0) {
    return ScaleAndMinimum{half(number), half(number >> 16)};
  } else {
    return ScaleAndMinimum{half(of_block) * static_cast<float>(number & ((1u << kBits) - 1u)),
                           half(of_block >> 16) * static_cast<float>(number >> kBits)};
  }
}

// The factor of numbers that `by` multiplies besides.
VQ_DEVICE float factor_times(float factor, float by) { return factor * by; }
VQ_DEVICE ScaleAndMinimum factor_times(ScaleAndMinimum factor, float by) {
  return {factor.scale * by, factor.minimum};
}

VQ_DEVICE float apply_factor(float factor, float number) { return factor * number; }
VQ_DEVICE float apply_factor(ScaleAndMinimum factor, float number) {
  return fused(factor.scale, number, -factor.minimum);
}

// Factors of a pair of numbers, each rounded once.
template <Element kElement>
VQ_DEVICE u32 paired_factor(float factor) {
  return pack2<kElement>(factor, factor);
}
template <Element kElement>
VQ_DEVICE PairedTerms paired_factor(ScaleAndMinimum factor) {
  return {pack2<kElement>(factor.scale, factor.scale),
          pack2<kElement>(-factor.minimum, -factor.minimum)};
}
template <Element kElement>
VQ_DEVICE u32 apply_factor2(u32 factor, u32 numbers) {
  return fused2<kElement>(numbers, factor, 0x80008000u);
}
template <Element kElement>
VQ_DEVICE u32 apply_factor2(PairedTerms factor, u32 numbers) {
  return fused2<kElement>(numbers, factor.scale, factor.offset);
}

}  // namespace vq
