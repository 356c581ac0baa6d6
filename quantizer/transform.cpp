#include "quantizer/transform.h"

#include <algorithm>
#include <cmath>

namespace vqgen {
namespace {

// The factors of one head.
std::span<const float> factors_of(std::span<const float> smooth, std::int64_t head,
                                  std::int64_t columns) {
  return smooth.subspan(static_cast<std::size_t>(head * columns),
                        static_cast<std::size_t>(columns));
}

}  // namespace

std::vector<float> smooth_factors(const FloatTensor& keys) {
  std::vector<float> factors(static_cast<std::size_t>(keys.heads * keys.columns), 0.0f);
  for (std::int64_t index = 0; index < keys.row_count(); ++index) {
    const std::span<const float> row = keys.row(index);
    float* maxima = factors.data() + keys.head_of(index) * keys.columns;
    for (std::size_t i = 0; i < row.size(); ++i) maxima[i] = std::max(maxima[i], std::abs(row[i]));
  }
  for (float& factor : factors) factor = factor > 0.0f ? std::sqrt(factor) : 1.0f;
  return factors;
}

void hadamard(std::span<float> row) {
  const std::size_t size = row.size();
  for (std::size_t half = 1; half < size; half *= 2) {
    for (std::size_t start = 0; start < size; start += 2 * half) {
      for (std::size_t i = start; i < start + half; ++i) {
        const float a = row[i];
        const float b = row[i + half];
        row[i] = a + b;
        row[i + half] = a - b;
      }
    }
  }
  const float norm = 1.0f / std::sqrt(static_cast<float>(size));
  for (float& value : row) value *= norm;
}

void transform_keys(FloatTensor& keys, const VqFormat& format, std::span<const float> smooth) {
  for (std::int64_t index = 0; index < keys.row_count(); ++index) {
    const std::span<float> row = keys.row(index);
    if (format.smooth) {
      const auto factors = factors_of(smooth, keys.head_of(index), keys.columns);
      for (std::size_t i = 0; i < row.size(); ++i) row[i] /= factors[i];
    }
    if (format.hadamard) hadamard(row);
  }
}

void untransform_keys(FloatTensor& keys, const VqFormat& format, std::span<const float> smooth) {
  for (std::int64_t index = 0; index < keys.row_count(); ++index) {
    const std::span<float> row = keys.row(index);
    if (format.hadamard) hadamard(row);
    if (format.smooth) {
      const auto factors = factors_of(smooth, keys.head_of(index), keys.columns);
      for (std::size_t i = 0; i < row.size(); ++i) row[i] *= factors[i];
    }
  }
}

}  // namespace vqgen
