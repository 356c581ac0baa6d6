#include "heuristics/placement/even_draws.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace vqgen {
namespace {

// Lanes of one copy contend for slots of their own. The ways in which k of them want at most m of a
// slot's r rows have the exponential generating function
//
//   g(x) = sum over j <= m of C(r, j) (e^x - 1)^j
//
// lanes whose entry stands elsewhere have e^(x times such entries), and all slots together the
// product (Flajolet, Sedgewick, Analytic Combinatorics, II.3). x is taken in units of 1 / entries,
// so that coefficients are probabilities over k!.
class EvenDraws {
 public:
  EvenDraws(const SharedTable& table, int entries)
      // Copies beyond the lanes of a phase are read by none of them.
      : copies_(std::min(table.copies, phase_lanes(table.entry_bytes))),
        lanes_(phase_lanes(table.entry_bytes) / copies_) {
    const std::int64_t units = std::max(table.lane_units, 1);
    const std::int64_t rows = units * (table.range.end - table.range.begin);
    const std::int64_t slots = lanes_ / std::gcd(lanes_, table.residuals);
    all_ = static_cast<double>(units * entries);
    more_ = Slots{rows / slots + 1, rows % slots};
    fewer_ = Slots{rows / slots, slots - rows % slots};
    elsewhere_ = exponential(all_ - static_cast<double>(rows));
    wanted_ = exponential(1);
    wanted_[0] = 0;
  }

  double expected_passes() const {
    double expected = 0;
    Series power = one();  // (e^x - 1)^m
    Series of_more{}, of_fewer{};
    for (int most = 0; most < lanes_; ++most) {
      add(of_more, power, choose(more_.rows, most));
      add(of_fewer, power, choose(fewer_.rows, most));
      Series all =
          times(elsewhere_, times(raised(of_more, more_.count), raised(of_fewer, fewer_.count)));
      double probability = all[static_cast<std::size_t>(lanes_)];
      for (int i = 2; i <= lanes_; ++i) probability *= i;
      const double above = 1 - std::pow(std::min(probability, 1.0), copies_);
      expected += above;
      if (above < 1e-9) break;
      power = times(power, wanted_);
    }
    return expected;
  }

 private:
  static constexpr std::size_t kMost = 32;
  using Series = std::array<double, kMost + 1>;  // coefficients of powers of x
  struct Slots {
    std::int64_t rows;   // of one
    std::int64_t count;  // of such slots
  };

  static Series one() {
    Series result{};
    result[0] = 1;
    return result;
  }
  // e^(count x)
  Series exponential(double count) const {
    Series result = one();
    for (std::size_t k = 1; k <= kMost; ++k) {
      result[k] = result[k - 1] * count / all_ / static_cast<double>(k);
    }
    return result;
  }
  Series times(const Series& a, const Series& b) const {
    Series result{};
    for (std::size_t i = 0; i <= static_cast<std::size_t>(lanes_); ++i) {
      for (std::size_t j = 0; i + j <= static_cast<std::size_t>(lanes_); ++j) {
        result[i + j] += a[i] * b[j];
      }
    }
    return result;
  }
  Series raised(Series base, std::int64_t exponent) const {
    Series result = one();
    for (; exponent > 0; exponent /= 2) {
      if (exponent % 2 == 1) result = times(result, base);
      if (exponent > 1) base = times(base, base);
    }
    return result;
  }
  static void add(Series& to, const Series& from, double factor) {
    for (std::size_t k = 0; k < to.size(); ++k) to[k] += factor * from[k];
  }
  static double choose(std::int64_t of, int count) {
    double ways = 1;
    for (int i = 0; i < count; ++i) ways *= static_cast<double>(of - i) / (i + 1);
    return ways;
  }

  int copies_;
  int lanes_;  // that read one copy
  double all_;
  Slots more_, fewer_;
  Series elsewhere_, wanted_;
};

}  // namespace

double expected_passes(const SharedTable& table, int entries) {
  return EvenDraws(table, entries).expected_passes();
}

}  // namespace vqgen
