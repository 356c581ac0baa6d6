// The key transforms, and their inverse: applied to the query, q~ = q diag(lambda) H (VecInfer
// eq. 7), or to decoded keys.
#pragma once

#include <vq/layout/hadamard.h>
#include <vq/machine.cuh>
#include <vq/numbers.cuh>

namespace vq {

// 1 / sqrt(length) of a power of two, or of one times 3, 5 or 7.
VQ_HD constexpr float hadamard_scale(int length) {
  return length == 1    ? 1.0f
         : length == 2  ? 0.70710678118654752440f
         : length == 3  ? 0.57735026918962576451f
         : length == 5  ? 0.44721359549995793928f
         : length == 6  ? 0.40824829046386301637f
         : length == 7  ? 0.37796447300922722721f
         : length == 10 ? 0.31622776601683793320f
         : length == 14 ? 0.26726124191242438468f
                        : 0.5f * hadamard_scale(length / 4);
}

// Butterfly steps, in place, of a row that one lane holds, or of its runs of kRun: row <- row H,
// unscaled.
template <int kRun, int kLength>
VQ_DEVICE void hadamard_runs(float (&row)[kLength]) {
  VQ_UNROLL
  for (int apart = 1; apart < kRun; apart *= 2) {
    VQ_UNROLL
    for (int j = 0; j < kLength; ++j) {
      if ((j & apart) != 0) continue;
      const float a = row[j];
      const float b = row[j + apart];
      row[j] = a + b;
      row[j + apart] = a - b;
    }
  }
}

template <int kLength>
VQ_DEVICE void hadamard_steps(float (&row)[kLength]) {
  hadamard_runs<kLength>(row);
}
// Butterfly steps between lanes that are less than kLanes apart.
template <int kLanes, int kOfLane>
VQ_DEVICE void hadamard_lanes(float (&row)[kOfLane]) {
  VQ_UNROLL
  for (int span = 1; span < kLanes; span *= 2) {
    const float sign = (lane() & span) != 0 ? -1.0f : 1.0f;
    VQ_UNROLL
    for (int j = 0; j < kOfLane; ++j) row[j] = sign * row[j] + shuffle_xor(row[j], span);
  }
}
// `value`, negated if bit `column` of a row of Paley's matrix is set.
VQ_DEVICE float signed_by(u32 row, int column, float value) {
  return float_from_bits(float_bits(value) ^ (row >> column & 1u) << 31);
}

// In place, row <- row H / sqrt(n): a row of kLength fp32, a power of two, over consecutive lanes
// with kOfLane each. Lane l has elements l + lanes j, or kOfLane l + j: H is the same for any bit
// order of element numbers. Lanes past the row keep zeros. All lanes of the warp.
template <int kLength, int kOfLane>
VQ_DEVICE void sylvester_row(float (&row)[kOfLane]) {
  static_assert((kLength & (kLength - 1)) == 0, "Sylvester's order is a power of two");
  constexpr int kLanes = kLength / kOfLane;
  static_assert(kLanes * kOfLane == kLength && kLanes <= 32, "");
  constexpr float kScale = hadamard_scale(kLength);
  VQ_UNROLL
  for (int j = 0; j < kOfLane; ++j) row[j] *= kScale;
  hadamard_lanes<kLanes>(row);
  hadamard_steps(row);
}

// hadamard_row() of kLength = m p elements, of which lane l has l + 32 j: after the steps of
// Sylvester's part, between lanes, each element gathers m of Paley's.
template <int kLength, int kOfLane>
VQ_DEVICE void paley_sums(float (&row)[kOfLane]) {
  constexpr int kOrder = paley_order(kLength);
  constexpr int kRun = kLength / kOrder;  // p
  constexpr int kApart = 32 / kRun;  // rows of Paley's matrix from a lane's element to its next
  static_assert(kRun >= 4 && kRun <= 16 && kOfLane == (kLength + 31) / 32, "");
  static constexpr PaleyTable kTable = paley_table(kOrder);
  hadamard_lanes<kRun>(row);
  const int own = lane() / kRun;
  u32 signs[kOfLane];
  float sums[kOfLane];
  VQ_UNROLL
  for (int j = 0; j < kOfLane; ++j) {
    signs[j] = own + kApart * j < kOrder ? kTable.rows[own + kApart * j] : 0;
    sums[j] = 0.0f;
  }
  VQ_UNROLL
  for (int s = 0; s < kApart; ++s) {
    VQ_UNROLL
    for (int from = 0; from < kOfLane; ++from) {
      const int column = s + kApart * from;
      if (column >= kOrder) continue;
      const float other = shuffle(row[from], s * kRun + lane() % kRun);
      VQ_UNROLL
      for (int j = 0; j < kOfLane; ++j) sums[j] += signed_by(signs[j], column, other);
    }
  }
  VQ_UNROLL
  for (int j = 0; j < kOfLane; ++j) {
    row[j] = own + kApart * j < kOrder ? sums[j] * hadamard_scale(kLength) : 0.0f;
  }
}

// In place, row <- row H / sqrt(n): a row of kLength fp32, of which lane l has elements l + 32 j,
// or as sylvester_row() says. Lanes past the row keep zeros. All lanes of the warp.
template <int kLength, int kOfLane>
VQ_DEVICE void hadamard_row(float (&row)[kOfLane]) {
  if constexpr (paley_order(kLength) == 1) {
    sylvester_row<kLength>(row);
  } else {
    paley_sums<kLength>(row);
  }
}

// Lanes that hold a row of hadamard_octets(): a power of two.
VQ_HD constexpr int octet_lanes(int length) {
  int lanes = 1;
  while (lanes * 8 < length) lanes *= 2;
  return lanes;
}
// hadamard_row() of rows of which a lane has elements 8 l + i, where l is its number among the
// octet_lanes() of a row.
template <int kLength>
VQ_DEVICE void hadamard_octets(float (&row)[8]) {
  constexpr int kOrder = paley_order(kLength);
  if constexpr (kOrder == 1) {
    sylvester_row<kLength>(row);
  } else {
    constexpr int kRun = kLength / kOrder;
    constexpr int kOfOctet = kRun < 8 ? 8 / kRun : 1;  // rows of Paley's matrix
    constexpr int kSharing = kRun < 8 ? 1 : kRun / 8;  // lanes that share one
    static_assert(kRun >= 4 && kRun <= 16, "");
    static constexpr PaleyTable kTable = paley_table(kOrder);
    hadamard_runs<(kRun < 8 ? kRun : 8)>(row);
    hadamard_lanes<kSharing>(row);
    const int own = lane() % octet_lanes(kLength);
    const int first = own / kSharing * kOfOctet;
    u32 signs[kOfOctet];
    VQ_UNROLL
    for (int i = 0; i < kOfOctet; ++i) {
      signs[i] = own * 8 < kLength ? kTable.rows[first + i] : 0;
    }
    float sums[8] = {};
    VQ_UNROLL
    for (int column = 0; column < kOrder; column += kOfOctet) {
      const int from = lane() - own + column / kOfOctet * kSharing + own % kSharing;
      VQ_UNROLL
      for (int j = 0; j < 8; ++j) {
        const float other = shuffle(row[j], from);
        VQ_UNROLL
        for (int i = 0; i < kOfOctet; ++i) {
          sums[i * (8 / kOfOctet) + j % (8 / kOfOctet)] +=
              signed_by(signs[i], column + j / (8 / kOfOctet), other);
        }
      }
    }
    VQ_UNROLL
    for (int j = 0; j < 8; ++j) row[j] = sums[j] * hadamard_scale(kLength);
  }
}

}  // namespace vq
