// The Hadamard matrix that keys are multiplied by (VecInfer eq. 5), orthonormal and symmetric. Of a
// power of two p of channels it is Sylvester's, (-1)^popcount(i & j). Of m p channels, with m = 12,
// 20 or 28, it is the Kronecker product of Paley's second matrix of order m with Sylvester's of p:
//
//   channels      number a p + b: a of Paley's, b of Sylvester's
//   Paley's       q = m / 2 - 1 is 5, 9 or 13; a = 2 i + u. Between i and j of 0 .. q it has
//                 c [1 1; 1 -1] for u and v, where c = 1 if i or j is 0, else 1 if i - j is a
//                 square of the field of q elements, else -1; and [1 -1; -1 -1] if i = j
#pragma once

#include <vq/annotations.h>
#include <vq/types.h>

namespace vq {

// The order m of Paley's matrix for so many channels, 1 of a power of two; 0: there is none.
VQ_HD constexpr int paley_order(int channels) {
  int odd = channels;
  while (odd > 1 && odd % 2 == 0) odd /= 2;
  if (odd == 1) return channels > 0 ? 1 : 0;
  const bool built = (odd == 3 || odd == 5 || odd == 7) && channels % 4 == 0;
  return built ? 4 * odd : 0;
}

// Is i - j a square, of two different elements of q? The 9 are a + 3 b for a + b x, where x x = -1:
// a and b x alone are squares.
VQ_HD constexpr bool paley_square(int q, int i, int j) {
  if (q == 9) return i % 3 == j % 3 || i / 3 == j / 3;
  for (int root = 1; root < q; ++root) {
    if (root * root % q == (i - j + q) % q) return true;
  }
  return false;
}

// Row `row` of Paley's matrix: bit `column` is set if the entry is -1.
VQ_HD constexpr u32 paley_row(int order, int row) {
  const int i = row / 2, q = order / 2 - 1;
  const bool u = row % 2 == 1;
  u32 negative = 0;
  for (int column = 0; column < order; ++column) {
    const int j = column / 2;
    const bool v = column % 2 == 1;
    bool minus = i == j ? u || v : u && v;
    if (i != j && i > 0 && j > 0 && !paley_square(q, i - 1, j - 1)) minus = !minus;
    if (minus) negative |= u32{1} << column;
  }
  return negative;
}

struct PaleyTable {
  u32 rows[28];
};
VQ_HD constexpr PaleyTable paley_table(int order) {
  PaleyTable table{};
  for (int row = 0; row < order; ++row) table.rows[row] = paley_row(order, row);
  return table;
}

}  // namespace vq
