// The numbers that Draw draws: sizes near powers of two and primes, and fields at and past their
// bounds.
#include <algorithm>
#include <array>
#include <cmath>

#include "tests/fuzz/draw.h"

namespace vqgen::test {
namespace {

constexpr std::array<std::int64_t, 24> kPrimes{
    2,   3,   5,    7,    11,   13,   17,   19,    31,    37,     61,      127,
    251, 509, 1021, 2039, 4093, 4099, 8191, 16381, 65521, 131071, 1048573, 16777213};

}  // namespace

std::int64_t Draw::size(std::int64_t most) {
  if (extremes_) {
    const auto near = static_cast<std::int64_t>(below(3));
    return one_in(2) ? std::min(1 + near, most) : std::max<std::int64_t>(1, most - near);
  }
  const double logarithm =
      std::log2(static_cast<double>(most)) * 0x1p-53 * static_cast<double>(bits() >> 11);
  const std::int64_t any = std::llround(std::exp2(logarithm));
  const auto power = static_cast<std::int64_t>(std::exp2(std::floor(logarithm + 0.5)));
  switch (below(4)) {
    case 0:
      return std::clamp<std::int64_t>(power + static_cast<std::int64_t>(below(3)) - 1, 1, most);
    case 1: {
      const auto end = std::upper_bound(kPrimes.begin(), kPrimes.end(), most);
      return end == kPrimes.begin() ? 1 : of(std::span(kPrimes.begin(), end));
    }
    default:
      return std::clamp<std::int64_t>(any, 1, most);
  }
}

std::int64_t Draw::field(double least, double most) {
  const auto low = static_cast<std::int64_t>(least);
  const auto high = static_cast<std::int64_t>(most);
  if (one_in(64)) return one_in(2) ? low - 1 : high + 1;
  if (one_in(16)) return one_in(2) ? low : high;
  return low + size(high - low + 1) - 1 + (one_in(2) && low == 0 && high > 1 ? 1 : 0);
}

}  // namespace vqgen::test
