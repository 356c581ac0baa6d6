// Median and quartiles of repeated times.
#pragma once

#include <vector>

namespace vqgen {

struct Quartiles {
  double low = 0;
  double median = 0;
  double high = 0;
};
// Linear between the values; requires one at least.
Quartiles quartiles(std::vector<double> values);

}  // namespace vqgen
