// Parts of a block's shared memory by the byte offsets that layouts give.
#pragma once

#include <vq/machine.cuh>

namespace vq {

template <class T>
VQ_DEVICE T* shared_part(i64 offset) {
  return reinterpret_cast<T*>(shared_memory() + offset);
}

}  // namespace vq
