// Loops whose index is a constant of the compiler's, for code that picks types or instructions by
// it.
#pragma once

#include <vq/annotations.h>

namespace vq {

template <int kValue>
struct Number {
  VQ_HD constexpr operator int() const { return kValue; }
};

// Calls each(Number<i>()) for i of [kFirst, kEnd), in order.
template <int kFirst, int kEnd, class Each>
VQ_DEVICE void for_each_number(Each each) {
  if constexpr (kFirst < kEnd) {
    each(Number<kFirst>());
    for_each_number<kFirst + 1, kEnd>(each);
  }
}

}  // namespace vq
