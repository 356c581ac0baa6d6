// What the collectives of a warp, or of four, do once all their lanes have arrived. Each lane
// brings a struct of operands, and the exchange sees all of them and writes the results. A new
// collective is a struct and an exchange: the runner knows only that lanes wait.
#pragma once

#include <vq/fragments.h>
#include <vq/host_access.h>
#include <vq/host_api.h>
#include <vq/host_element.h>
#include <vq/layout/core_matrices.h>

namespace vq::host {

inline constexpr int kLanes = 32;
inline constexpr Refusal kDone = {-1, 0};

template <class Operands>
Operands& operands_of(void* const* operands, int lane) {
  return *static_cast<Operands*>(operands[lane]);
}

// The exchange of a collective that needs all 32 lanes to exist.
template <void (*kExchange)(void* const* operands)>
Refusal of_whole_warp(void* const* operands) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (operands[lane] == nullptr) return {0, lane};
  }
  kExchange(operands);
  return kDone;
}

struct ShuffleOperands {
  u32 given;
  int source;  // lane
  u32 taken;
};

inline Refusal shuffle(void* const* operands) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (operands[lane] == nullptr) continue;
    auto& mine = operands_of<ShuffleOperands>(operands, lane);
    const int source = mine.source;
    if (source < 0 || source >= kLanes || operands[source] == nullptr) return {lane, source};
    mine.taken = operands_of<ShuffleOperands>(operands, source).given;
  }
  return kDone;
}

struct VoteOperands {
  bool given;
  bool any;
};

inline void any(void* const* operands) {
  bool found = false;
  for (int lane = 0; lane < kLanes; ++lane) {
    found = found || operands_of<VoteOperands>(operands, lane).given;
  }
  for (int lane = 0; lane < kLanes; ++lane) operands_of<VoteOperands>(operands, lane).any = found;
}

struct LargestOperands {
  u32 given;
  u32 largest;
};

inline void largest(void* const* operands) {
  u32 most = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const u32 given = operands_of<LargestOperands>(operands, lane).given;
    most = given > most ? given : most;
  }
  for (int lane = 0; lane < kLanes; ++lane)
    operands_of<LargestOperands>(operands, lane).largest = most;
}

// Operands of an MMA of a warp or, with a descriptor for b, of a warpgroup.
template <class Sum, class B = const u32*>
struct MmaOperands {
  Sum* c;
  const u32* a;
  B b;
};

inline u16 half_of(u32 word, int i) { return static_cast<u16>(word >> 16 * i); }
inline i32 byte_of(u32 word, int i) { return static_cast<signed char>(word >> 8 * i); }
inline i32 unsigned_byte_of(u32 word, int i) { return static_cast<u8>(word >> 8 * i); }

// Gathers a matrix of which each of 32 lanes holds kCount elements: element(lane, i) goes to
// place_of(lane, i).
template <int kCount, int kRows, int kColumns, class T, class Element>
void gather(T (&matrix)[kRows][kColumns], fragment::Place (*place_of)(int, int), Element element) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < kCount; ++i) {
      const fragment::Place place = place_of(lane, i);
      matrix[place.row][place.column] = element(lane, i);
    }
  }
}

// Sums in the order of k, each product exact in fp32.
template <Element E>
void mma_m16n8k16(void* const* operands) {
  using Operands = MmaOperands<float>;
  const auto widen = E == Element::f16 ? f16_to_float : bf16_to_float;
  float a[16][16], b[16][8];
  gather<8>(a, fragment::a_m16n8k16, [&](int lane, int i) {
    return widen(half_of(operands_of<Operands>(operands, lane).a[i / 2], i % 2));
  });
  gather<4>(b, fragment::b_m16n8k16, [&](int lane, int i) {
    return widen(half_of(operands_of<Operands>(operands, lane).b[i / 2], i % 2));
  });
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const fragment::Place place = fragment::c_m16n8(lane, i);
      float& sum = operands_of<Operands>(operands, lane).c[i];
      for (int k = 0; k < 16; ++k) sum += a[place.row][k] * b[k][place.column];
    }
  }
}

// mma of kOfA's bytes in a and of kOfB's bytes in b. Sums wrap at 32 bits.
template <i32 (*kOfA)(u32 word, int i), i32 (*kOfB)(u32 word, int i)>
void mma_m16n8k32(void* const* operands) {
  using Operands = MmaOperands<i32>;
  i32 a[16][32], b[32][8];
  gather<16>(a, fragment::a_m16n8k32, [&](int lane, int i) {
    return kOfA(operands_of<Operands>(operands, lane).a[i / 4], i % 4);
  });
  gather<8>(b, fragment::b_m16n8k32, [&](int lane, int i) {
    return kOfB(operands_of<Operands>(operands, lane).b[i / 4], i % 4);
  });
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const fragment::Place place = fragment::c_m16n8(lane, i);
      i32& c = operands_of<Operands>(operands, lane).c[i];
      u32 sum = static_cast<u32>(c);
      for (int k = 0; k < 32; ++k) sum += static_cast<u32>(a[place.row][k] * b[k][place.column]);
      c = static_cast<i32>(sum);
    }
  }
}

template <int kMatrices>
struct LdmatrixOperands {
  const u32* row;  // lane 8 m + r gives row r of matrix m
  u32* d;
  const u16* from[kMatrices][2];  // where this lane's halves came from
};

template <int kMatrices, bool kTransposed>
void ldmatrix(void* const* operands) {
  for (int lane = 0; lane < kLanes; ++lane) {
    auto& mine = operands_of<LdmatrixOperands<kMatrices>>(operands, lane);
    for (int m = 0; m < kMatrices; ++m) {
      mine.d[m] = 0;
      for (int i = 0; i < 2; ++i) {
        const fragment::Place place = fragment::m8n8(lane, i, kTransposed);
        const u32* row = operands_of<LdmatrixOperands<kMatrices>>(operands, 8 * m + place.row).row;
        mine.from[m][i] = reinterpret_cast<const u16*>(row) + place.column;
        mine.d[m] |= static_cast<u32>(load(mine.from[m][i])) << 16 * i;
      }
    }
  }
}

// The source is not read.
inline void movmatrix_trans(void* const* operands) {
  for (int lane = 0; lane < kLanes; ++lane) {
    u32& taken = operands_of<ShuffleOperands>(operands, lane).taken;
    taken = 0;
    for (int i = 0; i < 2; ++i) {
      const fragment::Place place = fragment::m8n8(lane, i, true);
      const u32 word =
          operands_of<ShuffleOperands>(operands, place.row * 4 + place.column / 2).given;
      taken |= static_cast<u32>(half_of(word, place.column % 2)) << 16 * i;
    }
  }
}

// wgmma is computed at once when all 128 threads have arrived. A GPU goes on reading shared memory
// until the threads have waited: the runner remembers the range (warpgroup_read) and checks it
// again then.
inline constexpr int kGroupThreads = 128;

// Sums in k order, each product exact in fp32. A thread whose descriptor differs from thread 0's
// gets NaN, as the instruction has one descriptor.
template <Element E, int kColumns>
Refusal warpgroup_mma(void* const* operands) {
  using Operands = MmaOperands<float, u64>;
  const auto widen = E == Element::f16 ? f16_to_float : bf16_to_float;
  const u64 descriptor = operands_of<Operands>(operands, 0).b;
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
    gather<8>(a, fragment::a_m16n8k16, [&](int lane, int i) {
      return widen(half_of(operands_of<Operands>(operands, first + lane).a[i / 2], i % 2));
    });
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto& mine = operands_of<Operands>(operands, first + lane);
      for (int i = 0; i < kColumns / 2; ++i) {
        const fragment::Place place = fragment::c_m64n(lane, i);
        for (int k = 0; k < 16; ++k) mine.c[i] += a[place.row][k] * b[k][place.column];
        if (mine.b != descriptor) mine.c[i] = bits<float>(~u32{0});
      }
    }
  }
  return kDone;
}

// warpgroup_mma() of signed bytes, whose sums wrap at 32 bits; a thread with a different descriptor
// gets the least integer.
template <int kColumns>
Refusal warpgroup_mma_s8(void* const* operands) {
  using Operands = MmaOperands<i32, u64>;
  const u64 descriptor = operands_of<Operands>(operands, 0).b;
  i32 b[32][kColumns];
  for (int n = 0; n < kColumns; ++n) {
    for (int k = 0; k < 32; ++k) {
      const u8* row = context->shared + core_row(descriptor, n, k / 16);
      b[k][n] = byte_of(load(reinterpret_cast<const u32*>(row) + k % 16 / 4), k % 4);
    }
  }
  for (int first = 0; first < kGroupThreads; first += kLanes) {
    i32 a[16][32];
    gather<16>(a, fragment::a_m16n8k32, [&](int lane, int i) {
      return byte_of(operands_of<Operands>(operands, first + lane).a[i / 4], i % 4);
    });
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto& mine = operands_of<Operands>(operands, first + lane);
      for (int i = 0; i < kColumns / 2; ++i) {
        const fragment::Place place = fragment::c_m64n(lane, i);
        u32 sum = static_cast<u32>(mine.c[i]);
        for (int k = 0; k < 32; ++k) sum += static_cast<u32>(a[place.row][k] * b[k][place.column]);
        mine.c[i] = static_cast<i32>(mine.b == descriptor ? sum : 0x80000000u);
      }
    }
  }
  return kDone;
}

}  // namespace vq::host
