// What the collectives of a warp do once all its lanes have arrived. Each lane brings a struct of
// operands; the exchange sees all of them, by lane, and writes the results. The runner knows only
// that they wait, so that a new collective is its struct and its exchange.
#pragma once

#include <vq/fragments.h>
#include <vq/host_access.h>
#include <vq/host_api.h>
#include <vq/host_element.h>

namespace vq::host {

inline constexpr int kLanes = 32;
inline constexpr Refusal kDone = {-1, 0};

template <class Operands>
Operands& of(void* const* operands, int lane) {
  return *static_cast<Operands*>(operands[lane]);
}

// For collectives that need all 32 lanes to exist.
inline Refusal missing_lane(void* const* operands) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (operands[lane] == nullptr) return {0, lane};
  }
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
    auto& mine = of<ShuffleOperands>(operands, lane);
    const int source = mine.source;
    if (source < 0 || source >= kLanes || operands[source] == nullptr) return {lane, source};
    mine.taken = of<ShuffleOperands>(operands, source).given;
  }
  return kDone;
}

struct VoteOperands {
  bool given;
  bool any;
};

inline Refusal any(void* const* operands) {
  const Refusal missing = missing_lane(operands);
  if (missing.lane >= 0) return missing;
  bool found = false;
  for (int lane = 0; lane < kLanes; ++lane) {
    found = found || of<VoteOperands>(operands, lane).given;
  }
  for (int lane = 0; lane < kLanes; ++lane) of<VoteOperands>(operands, lane).any = found;
  return kDone;
}

template <class Sum>
struct MmaOperands {
  Sum* c;
  const u32* a;
  const u32* b;
};

inline u16 half_of(u32 word, int i) { return static_cast<u16>(word >> 16 * i); }
inline i32 byte_of(u32 word, int i) { return static_cast<signed char>(word >> 8 * i); }

// Sums in the order of k, each product exact in fp32.
template <Element E>
Refusal mma_m16n8k16(void* const* operands) {
  const Refusal missing = missing_lane(operands);
  if (missing.lane >= 0) return missing;
  const auto widen = E == Element::f16 ? f16_to_float : bf16_to_float;
  float a[16][16], b[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& mine = of<MmaOperands<float>>(operands, lane);
    for (int i = 0; i < 8; ++i) {
      const fragment::Place at = fragment::a_m16n8k16(lane, i);
      a[at.row][at.column] = widen(half_of(mine.a[i / 2], i % 2));
    }
    for (int i = 0; i < 4; ++i) {
      const fragment::Place at = fragment::b_m16n8k16(lane, i);
      b[at.row][at.column] = widen(half_of(mine.b[i / 2], i % 2));
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const fragment::Place at = fragment::c_m16n8(lane, i);
      float& sum = of<MmaOperands<float>>(operands, lane).c[i];
      for (int k = 0; k < 16; ++k) sum += a[at.row][k] * b[k][at.column];
    }
  }
  return kDone;
}

// Sums wrap at 32 bits.
inline Refusal mma_m16n8k32_s8(void* const* operands) {
  const Refusal missing = missing_lane(operands);
  if (missing.lane >= 0) return missing;
  i32 a[16][32], b[32][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& mine = of<MmaOperands<i32>>(operands, lane);
    for (int i = 0; i < 16; ++i) {
      const fragment::Place at = fragment::a_m16n8k32(lane, i);
      a[at.row][at.column] = byte_of(mine.a[i / 4], i % 4);
    }
    for (int i = 0; i < 8; ++i) {
      const fragment::Place at = fragment::b_m16n8k32(lane, i);
      b[at.row][at.column] = byte_of(mine.b[i / 4], i % 4);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const fragment::Place at = fragment::c_m16n8(lane, i);
      i32& c = of<MmaOperands<i32>>(operands, lane).c[i];
      u32 sum = static_cast<u32>(c);
      for (int k = 0; k < 32; ++k) sum += static_cast<u32>(a[at.row][k] * b[k][at.column]);
      c = static_cast<i32>(sum);
    }
  }
  return kDone;
}

template <int kMatrices>
struct LdmatrixOperands {
  const u32* row;  // lane 8 m + r gives row r of matrix m
  u32* d;
  const u16* from[kMatrices][2];  // where this lane's halves came from
};

template <int kMatrices>
Refusal ldmatrix(void* const* operands) {
  const Refusal missing = missing_lane(operands);
  if (missing.lane >= 0) return missing;
  for (int lane = 0; lane < kLanes; ++lane) {
    auto& mine = of<LdmatrixOperands<kMatrices>>(operands, lane);
    for (int m = 0; m < kMatrices; ++m) {
      mine.d[m] = 0;
      for (int i = 0; i < 2; ++i) {
        const fragment::Place at = fragment::m8n8(lane, i, false);
        const u32* row = of<LdmatrixOperands<kMatrices>>(operands, 8 * m + at.row).row;
        mine.from[m][i] = reinterpret_cast<const u16*>(row) + at.column;
        mine.d[m] |= static_cast<u32>(load(mine.from[m][i])) << 16 * i;
      }
    }
  }
  return kDone;
}

struct MovmatrixOperands {
  u32 given;
  u32 taken;
};

inline Refusal movmatrix_trans(void* const* operands) {
  const Refusal missing = missing_lane(operands);
  if (missing.lane >= 0) return missing;
  for (int lane = 0; lane < kLanes; ++lane) {
    u32& taken = of<MovmatrixOperands>(operands, lane).taken;
    taken = 0;
    for (int i = 0; i < 2; ++i) {
      const fragment::Place at = fragment::m8n8(lane, i, true);
      const u32 word = of<MovmatrixOperands>(operands, at.row * 4 + at.column / 2).given;
      taken |= static_cast<u32>(half_of(word, at.column % 2)) << 16 * i;
    }
  }
  return kDone;
}

}  // namespace vq::host
