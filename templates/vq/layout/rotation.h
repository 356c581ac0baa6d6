// The matrices that rotate rows of x and of y around rotated weights, as QuIP# has them (Tseng et
// al., 2024). Of n = m p features, p a power of two, H is the Kronecker product of a Hadamard
// matrix of order m with Sylvester's of p, over sqrt(n). x is multiplied by the transpose of m's
// matrix.
//
//   m                      matrix of order m
//   12, 20, 60, 108, 140   Paley's first, of the field of q = m - 1 elements
//   28, 36                 Paley's second: [C + I, C - I; C - I, -C - I], q = m / 2 - 1
//   52, 156, 172           Williamson's [A B C D; -B A -D C; -C D A -B; -D -C B A] of symmetric
//                          circulants
#pragma once

#include <vq/layout/hadamard.h>

namespace vq {

constexpr int kMostRotationOrder = 172;

// The order m for so many features, 1 of a power of two; 0: no matrix is known.
VQ_HD constexpr int rotation_order(i64 features) {
  i64 odd = features;
  while (odd > 1 && odd % 2 == 0) odd /= 2;
  if (odd == 1) return features > 0 ? 1 : 0;
  const bool known = odd == 3 || odd == 5 || odd == 7 || odd == 9 || odd == 13 || odd == 15 ||
                     odd == 27 || odd == 35 || odd == 39 || odd == 43;
  return known && features % 4 == 0 ? static_cast<int>(4 * odd) : 0;
}

// The first row of circulant 0 to 3 of Williamson's matrix: bit k is set if element k is -1.
VQ_HD constexpr u64 williamson_row(int order, int circulant) {
  constexpr u64 rows[3][4] = {{0x161a, 0x1c0e, 0xb34, 0x1ede},
                              {0x1afb3cdf58, 0xecf5af370, 0x1975bdae98, 0x72be247d4e},
                              {0x730a26450ce, 0x207ac935e04, 0x14d42f42b28, 0x385b3fcda1c}};
  const int place = order == 52 ? 0 : order == 156 ? 1 : 2;
  return rows[place][circulant];
}

// Is the element -1?
VQ_HD constexpr bool rotation_is_negative(int order, int row, int column) {
  if (order == 52 || order == 156 || order == 172) {
    constexpr int which[4][4] = {{0, 1, 2, 3}, {1, 0, 3, 2}, {2, 3, 0, 1}, {3, 2, 1, 0}};
    constexpr bool minus[4][4] = {{false, false, false, false},
                                  {true, false, true, false},
                                  {true, false, false, true},
                                  {true, true, false, false}};
    const int size = order / 4, a = row / size, b = column / size;
    const int shift = (column % size - row % size + size) % size;
    return ((williamson_row(order, which[a][b]) >> shift & 1) == 1) != minus[a][b];
  }
  if (order == 28 || order == 36) {
    const int half = order / 2, q = half - 1;
    const bool low = row >= half, right = column >= half;
    const int i = row % half, j = column % half;
    if (i == j) return low || right;
    const bool square = i == 0 || j == 0 || paley_square(q, j, i);
    return square == (low && right);
  }
  if (order == 1 || column == 0) return false;
  const int q = order - 1;
  return row == 0 || (row != column && paley_square(q, column, row));
}

}  // namespace vq
