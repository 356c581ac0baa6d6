// Random numbers whose bits are the same on every machine and standard library: splitmix64, without
// libm.
#pragma once

#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

namespace vqgen {

class Random {
 public:
  // Streams of one seed are independent of each other.
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0)
      : state_(mix(mix(seed + kGamma) + stream * kGamma)) {}

  std::uint64_t bits() { return mix(state_ += kGamma); }
  // [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // 0..bound-1, with a bias of at most bound / 2^64. Requires bound > 0.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(bound));
  }
  bool chance(double probability) { return uniform() < probability; }
  // Mean 0, variance 1, within 3.5: the sum of four uniform 16-bit numbers.
  double normal() {
    const std::uint64_t b = bits();
    const std::uint64_t sum =
        (b & 0xffff) + ((b >> 16) & 0xffff) + ((b >> 32) & 0xffff) + (b >> 48);
    return (static_cast<double>(sum) * 0x1p-16 - 2) * 1.7320508075688772;
  }

  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::int64_t i = std::ssize(values); i > 1; --i) {
      std::swap(values[static_cast<std::size_t>(i - 1)],
                values[static_cast<std::size_t>(below(i))]);
    }
  }

 private:
  static constexpr std::uint64_t kGamma = 0x9e3779b97f4a7c15u;
  static constexpr std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

}  // namespace vqgen
