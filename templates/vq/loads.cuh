// Memory by byte offsets and words; and loads as objects, for code that reads what others store as
// well as what nobody does. (No generic lambdas: NVRTC takes them for host functions.)
#pragma once

#include <vq/machine.cuh>

namespace vq {

// For data that other launches may have stored: caches, partials.
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

// For weights, some of them loaded before after_last_launch().
struct BeginConstant {
  template <class T>
  VQ_DEVICE T operator()(const T* pointer) const {
    return begin_constant(pointer);
  }
};

// For weights that are read once.
struct StreamConstant {
  template <class T>
  VQ_DEVICE T operator()(const T* pointer) const {
    return stream_constant(pointer);
  }
};

// Part of a block's shared memory at the offset that a layout gives.
template <class T>
VQ_DEVICE T* shared_part(i64 offset) {
  return reinterpret_cast<T*>(shared_memory() + offset);
}

// load(turn), then store(turn), of turns 0, kTogether, .. below kTurns, each of kTogether turns;
// meanwhile() is called while the first loads are on their way.
template <int kTurns, int kTogether, class Load, class Store, class Meanwhile>
VQ_DEVICE void by_turns(Load load, Store store, Meanwhile meanwhile) {
  load(0);
  meanwhile();
  store(0);
  for (int turn = kTogether; turn < kTurns; turn += kTogether) {
    load(turn);
    store(turn);
  }
}

// kCount words, 1, 2 or 4, that follow each other, by one access of load(const T*).
template <int kCount, class Load>
VQ_DEVICE void load_words(u32* to, const u32* from, Load load) {
  if constexpr (kCount == 4) {
    const U32x4 four = load(reinterpret_cast<const U32x4*>(from));
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  } else if constexpr (kCount == 2) {
    const U32x2 two = load(reinterpret_cast<const U32x2*>(from));
    to[0] = two.x, to[1] = two.y;
  } else {
    to[0] = load(from);
  }
}
}  // namespace vq
