// Median and quartiles of repeated times.
#pragma once

#include <algorithm>
#include <vector>

namespace vqgen {

struct Quartiles {
  double low = 0;
  double median = 0;
  double high = 0;
};

// Interpolates linearly between the values; requires at least one.
inline Quartiles quartiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto quantile = [&](double at) {
    const double place = at * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    const double part = place - static_cast<double>(below);
    return values[below] * (1 - part) + values[above] * part;
  };
  return {quantile(0.25), quantile(0.5), quantile(0.75)};
}

}  // namespace vqgen
