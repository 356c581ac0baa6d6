#include "quantizer/transform.h"

#include <vq/layout/hadamard.h>

#include <algorithm>
#include <cmath>

namespace vqgen {
namespace {

// Calls act(row, factors of its head) for each row; no factors where the keys are not smoothed.
template <class Act>
void for_each_row(FloatTensor& keys, std::span<const float> smooth, Act&& act) {
  const auto columns = static_cast<std::size_t>(smooth.empty() ? 0 : keys.columns);
  for (std::int64_t index = 0; index < keys.row_count(); ++index) {
    const auto head = static_cast<std::size_t>(keys.head_of(index));
    act(keys.row(index), smooth.subspan(head * columns, columns));
  }
}

}  // namespace

std::vector<float> smooth_factors(const FloatTensor& keys) {
  std::vector<float> factors(static_cast<std::size_t>(keys.heads * keys.columns), 0.0f);
  for (std::int64_t index = 0; index < keys.row_count(); ++index) {
    const std::span<const float> row = keys.row(index);
    float* maxima = factors.data() + keys.head_of(index) * keys.columns;
    for (std::size_t i = 0; i < row.size(); ++i) maxima[i] = std::max(maxima[i], std::abs(row[i]));
  }
  fill_dead(factors, static_cast<std::size_t>(keys.columns));
  for (float& factor : factors) factor = factor > 0.0f ? std::sqrt(factor) : 1.0f;
  return factors;
}

void hadamard(std::span<float> row) {
  const std::size_t size = row.size();
  const auto order = static_cast<std::size_t>(vq::paley_order(static_cast<int>(size)));
  const std::size_t run = size / order;  // channels of Sylvester's part
  for (std::size_t half = 1; half < run; half *= 2) {
    for (std::size_t start = 0; start < size; start += 2 * half) {
      for (std::size_t i = start; i < start + half; ++i) {
        const float a = row[i];
        const float b = row[i + half];
        row[i] = a + b;
        row[i + half] = a - b;
      }
    }
  }
  if (order > 1) {
    const vq::PaleyTable table = vq::paley_table(static_cast<int>(order));
    const std::vector<float> given(row.begin(), row.end());
    for (std::size_t i = 0; i < size; ++i) {
      const std::uint32_t negative = table.rows[i / run];
      float sum = 0;
      for (std::size_t j = 0; j < order; ++j) {
        const float other = given[j * run + i % run];
        sum += (negative >> j & 1u) != 0 ? -other : other;
      }
      row[i] = sum;
    }
  }
  const float norm = 1.0f / std::sqrt(static_cast<float>(size));
  for (float& value : row) value *= norm;
}

void transform_keys(FloatTensor& keys, const VqFormat& format, std::span<const float> smooth) {
  for_each_row(keys, smooth, [&](std::span<float> row, std::span<const float> factors) {
    for (std::size_t i = 0; i < factors.size(); ++i) row[i] /= factors[i];
    if (format.hadamard) hadamard(row);
  });
}

void untransform_keys(FloatTensor& keys, const VqFormat& format, std::span<const float> smooth) {
  for_each_row(keys, smooth, [&](std::span<float> row, std::span<const float> factors) {
    if (format.hadamard) hadamard(row);
    for (std::size_t i = 0; i < factors.size(); ++i) row[i] *= factors[i];
  });
}

}  // namespace vqgen
