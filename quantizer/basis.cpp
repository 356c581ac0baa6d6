#include "quantizer/basis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "core/problem/problem.h"

namespace vqgen {
namespace {

// visit(part, units) for each part, or for all.
template <class Visit>
void for_each_units(const QuantizedTensor& tensor, Visit visit) {
  const auto heads = static_cast<int>(tensor.heads);
  for_each_part(tensor.format, static_cast<int>(tensor.columns),
                [&](const VqFormat& part, int channels) {
                  visit(part, tensor.format.in_parts() ? kv_units(part_alone(part), heads, channels)
                                                       : tensor.units);
                });
}

}  // namespace

void leave_basis(FloatTensor& rows, const QuantizedTensor& tensor) {
  if (!has_basis(tensor.format)) return;
  const auto dim = static_cast<std::size_t>(rows.columns);
  std::vector<float> z(dim);
  for (std::int64_t index = 0; index < rows.row_count(); ++index) {
    const std::span<float> row = rows.row(index);
    const auto head = static_cast<std::size_t>(index / rows.rows % rows.heads);
    std::copy(row.begin(), row.end(), z.begin());
    for (std::size_t i = 0; i < dim; ++i) {
      if (tensor.format.klt) {
        const float* const factors = tensor.rotation.data() + (head * dim + i) * dim;
        row[i] = std::inner_product(z.begin(), z.end(), factors, 0.0f);
      }
      if (tensor.format.center) row[i] += tensor.mean[head * dim + i];
    }
  }
}

std::string rotation_fault(const QuantizedTensor& tensor) {
  constexpr double kMost = 1e-3;
  const auto dim = static_cast<std::size_t>(tensor.columns);
  for (std::size_t head = 0; head < tensor.rotation.size() / (dim * dim); ++head) {
    const float* const rows = tensor.rotation.data() + head * dim * dim;
    std::vector<double> products(dim * dim);
    for (std::size_t row = 0; row < dim; ++row) {
      for (std::size_t i = 0; i < dim; ++i) {
        const auto factor = static_cast<double>(rows[row * dim + i]);
        for (std::size_t j = 0; j < dim; ++j) {
          products[i * dim + j] += factor * static_cast<double>(rows[row * dim + j]);
        }
      }
    }
    for (std::size_t i = 0; i < products.size(); ++i) {
      const double right = i / dim == i % dim ? 1 : 0;
      if (std::abs(products[i] - right) <= kMost) continue;
      return fmt::format(
          "columns {} and {} of head {} have the inner product {:.4g}, where a rotation "
          "has {}; calibrate again",
          i / dim, i % dim, head, products[i], right);
    }
  }
  return "";
}

std::int64_t unit_count(const QuantizedTensor& tensor) {
  std::int64_t all = 0;
  for_each_units(tensor, [&](const VqFormat&, std::int64_t units) { all += units; });
  return all;
}

std::string take_gain(QuantizedTensor& tensor) {
  const std::vector<float> gains = std::exchange(tensor.gain, {});
  if (gains.empty()) return "";
  auto entry = tensor.codebooks.begin();
  auto gain = gains.begin();
  std::string fault;
  for_each_units(tensor, [&](const VqFormat& part, std::int64_t units) {
    const std::int64_t elements =
        std::int64_t{part.num_codebooks} * part.entries() * part.vector_size;
    for (std::int64_t unit = 0; unit < units; ++unit, ++gain) {
      if (part.stage_scales) {
        const auto stages = static_cast<std::ptrdiff_t>(part.num_codebooks);
        const auto scale = tensor.stage_scales.begin() + unit * stages;
        std::transform(scale, scale + stages, scale, [&](float each) { return each * *gain; });
        continue;
      }
      for (std::int64_t i = 0; i < elements; ++i, ++entry) {
        const float before = element_to_float(tensor.dtype, *entry);
        *entry = element_from_float(tensor.dtype, before * *gain);
        if (fault.empty() && !std::isfinite(element_to_float(tensor.dtype, *entry))) {
          fault = fmt::format(
              "element {} is {}, which makes an entry of {} not finite; "
              "calibrate again",
              gain - gains.begin(), *gain, before);
        }
      }
    }
  });
  return fault;
}

}  // namespace vqgen
