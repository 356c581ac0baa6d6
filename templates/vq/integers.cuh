// Numbers as integers, for products of integers.
#pragma once

#include <vq/machine.cuh>

namespace vq {

// The nearest of -peak .. peak; one of them also for what is no number.
VQ_DEVICE i32 nearest_within(float value, float peak) {
  value = value > peak ? peak : value > -peak ? value : -peak;
  return static_cast<i32>(value < 0.0f ? value - 0.5f : value + 0.5f);
}

}  // namespace vq
