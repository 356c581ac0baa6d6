#include "runtime/quartiles.h"

#include <algorithm>

namespace vqgen {
namespace {

double quantile_of(const std::vector<double>& sorted, double at) {
  const double place = at * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = place - static_cast<double>(below);
  return sorted[below] * (1 - part) + sorted[above] * part;
}

}  // namespace

Quartiles quartiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {quantile_of(values, 0.25), quantile_of(values, 0.5), quantile_of(values, 0.75)};
}

}  // namespace vqgen
