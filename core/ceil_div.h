// Division that rounds up, and even parts by it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace vqgen {

// a >= 0, b > 0. (Beside vq::ceil_div of the templates, whose i64 is another type of 64 bits.)
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Parts that `pieces` are cut into for about `wanted` parts of equal size but for the last, none
// of them empty.
constexpr std::int64_t even_splits(std::int64_t pieces, std::int64_t wanted) {
  return ceil_div(pieces, ceil_div(pieces, std::clamp<std::int64_t>(wanted, 1, pieces)));
}

}  // namespace vqgen
