// Loads as objects, for code that reads what others store as well as what nobody does.
#pragma once

#include <vq/machine.cuh>

namespace vq {

// Of what other launches may have stored: caches, partials.
struct LoadGlobal {
  template <class T>
  VQ_DEVICE T operator()(const T* pointer) const {
    return load_global(pointer);
  }
};

struct LoadShared {
  template <class T>
  VQ_DEVICE T operator()(const T* pointer) const {
    return load_shared(pointer);
  }
};

// Of weights, some of them before after_last_launch().
struct BeginConstant {
  template <class T>
  VQ_DEVICE T operator()(const T* pointer) const {
    return begin_constant(pointer);
  }
};

}  // namespace vq
