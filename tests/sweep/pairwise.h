// Pairwise coverage: few cases in which every pair of values of every two axes occurs.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace vqgen::test {

// A value of an axis, both by number.
struct AxisValue {
  int axis = 0;
  int value = 0;
  auto operator<=>(const AxisValue&) const = default;
};
using AxisPair = std::pair<AxisValue, AxisValue>;  // the first axis is the lower

// Grows each case greedily from a missing pair, value by value, by what covers most. `impossible`
// pairs never occur and need no cover. A case that `accepts` refuses is redrawn, at most kDraws
// times; the last one stays. A seed always gives the same cases.
class Pairwise {
 public:
  using Accepts = std::function<bool(const std::vector<int>& values, std::size_t number)>;
  Pairwise(std::vector<int> sizes, std::set<AxisPair> impossible, std::uint64_t seed,
           Accepts accepts)
      : sizes_(std::move(sizes)),
        impossible_(std::move(impossible)),
        random_(seed),
        accepts_(std::move(accepts)) {
    for_each_pair([&](const AxisPair& pair) { missing_.insert(pair); });
    required_ = missing_.size();
    while (!missing_.empty()) add_case();
  }

  const std::vector<std::vector<int>>& cases() const { return cases_; }
  std::size_t pairs() const { return required_; }

  // Counted from the cases, independently of how they were built.
  std::size_t uncovered() const {
    std::size_t count = 0;
    for_each_pair([&](const AxisPair& pair) {
      bool found = false;
      for (const auto& each : cases_) found = found || holds(each, pair);
      count += found ? 0 : 1;
    });
    return count;
  }

 private:
  template <class Visit>
  void for_each_pair(Visit&& visit) const {
    const int axes = static_cast<int>(sizes_.size());
    for (int a = 0; a < axes; ++a) {
      for (int b = a + 1; b < axes; ++b) {
        for (int i = 0; i < sizes_[at(a)]; ++i) {
          for (int j = 0; j < sizes_[at(b)]; ++j) {
            const AxisPair pair{{a, i}, {b, j}};
            if (!impossible_.contains(pair)) visit(pair);
          }
        }
      }
    }
  }

  static std::size_t at(int axis) { return static_cast<std::size_t>(axis); }
  static bool holds(const std::vector<int>& values, const AxisPair& pair) {
    return values[at(pair.first.axis)] == pair.first.value &&
           values[at(pair.second.axis)] == pair.second.value;
  }
  static AxisPair ordered(AxisValue a, AxisValue b) {
    return a < b ? AxisPair{a, b} : AxisPair{b, a};
  }

  static constexpr int kDraws = 48;

  // A case with the first missing pair; each draw after the first randomizes half of the other
  // values.
  std::vector<int> drawn(int draw) {
    std::vector<int> values(sizes_.size(), -1);
    const AxisPair seed = *missing_.begin();
    values[at(seed.first.axis)] = seed.first.value;
    values[at(seed.second.axis)] = seed.second.value;
    for (int axis = 0; axis < static_cast<int>(sizes_.size()); ++axis) {
      const bool by_chance = draw > 0 && random_() % 2 == 0;
      if (values[at(axis)] < 0) values[at(axis)] = best_value(axis, values, by_chance);
    }
    return values;
  }

  void add_case() {
    std::vector<int> values = drawn(0);
    for (int draw = 1; draw < kDraws && !accepts_(values, cases_.size()); ++draw) {
      values = drawn(draw);
    }
    for (int a = 0; a < static_cast<int>(values.size()); ++a) {
      for (int b = a + 1; b < static_cast<int>(values.size()); ++b) {
        missing_.erase({{a, values[at(a)]}, {b, values[at(b)]}});
      }
    }
    cases_.push_back(std::move(values));
  }

  // The possible value that covers most missing pairs with the values set so far, ties at random;
  // or any possible one.
  int best_value(int axis, const std::vector<int>& values, bool by_chance) {
    int best = -1;
    int best_score = -1;
    const int start = static_cast<int>(random_() % static_cast<unsigned>(sizes_[at(axis)]));
    for (int i = 0; i < sizes_[at(axis)]; ++i) {
      const int value = (start + i) % sizes_[at(axis)];
      int score = 0;
      for (int other = 0; other < static_cast<int>(values.size()) && score >= 0; ++other) {
        if (values[at(other)] < 0) continue;
        const AxisPair pair = ordered({axis, value}, {other, values[at(other)]});
        if (impossible_.contains(pair)) {
          score = -1;
        } else if (missing_.contains(pair)) {
          ++score;
        }
      }
      if (by_chance && score >= 0) return value;
      if (score > best_score) {
        best = value;
        best_score = score;
      }
    }
    return best;  // each axis always has a possible value
  }

  std::vector<int> sizes_;
  std::set<AxisPair> impossible_;
  std::mt19937_64 random_;
  Accepts accepts_;
  std::set<AxisPair> missing_;
  std::size_t required_ = 0;
  std::vector<std::vector<int>> cases_;
};

}  // namespace vqgen::test
