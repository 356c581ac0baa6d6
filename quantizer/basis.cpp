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

std::uint16_t with_gain(DType dtype, std::uint16_t entry, float gain) {
  return element_from_float(dtype, element_to_float(dtype, entry) * gain);
}

// Elements of the codebooks of one unit.
std::size_t elements_of(const VqFormat& part) {
  return static_cast<std::size_t>(std::int64_t{part.num_codebooks} * part.entries() *
                                  part.vector_size);
}

// visit(part, unit, first, stage) for each codebook set, whose entries begin at number `first` of
// all elements of the codebooks, and whose stages are numbers `stage` and on of all.
template <class Visit>
void for_each_unit(const QuantizedTensor& tensor, Visit visit) {
  const auto heads = static_cast<int>(tensor.heads);
  std::size_t unit = 0;
  std::size_t first = 0;
  std::size_t stage = 0;
  for_each_part(
      tensor.format, static_cast<int>(tensor.columns), [&](const VqFormat& part, int channels) {
        const std::int64_t units =
            tensor.format.in_parts() ? kv_units(part_alone(part), heads, channels) : tensor.units;
        for (std::int64_t i = 0; i < units; ++i, ++unit) {
          visit(part, unit, first, stage);
          first += elements_of(part);
          stage += static_cast<std::size_t>(part.num_codebooks);
        }
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
  for_each_unit(tensor, [&](const VqFormat&, auto...) { ++all; });
  return all;
}

std::string gain_fault(const QuantizedTensor& tensor) {
  if (tensor.gain.empty()) return "";
  std::string fault;
  for_each_unit(tensor, [&](const VqFormat& part, std::size_t unit, std::size_t first, auto) {
    if (part.stage_scales || !fault.empty()) return;
    const float gain = tensor.gain[unit];
    const auto entry = tensor.codebooks.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = entry + static_cast<std::ptrdiff_t>(elements_of(part));
    const auto bad = std::find_if(entry, end, [&](std::uint16_t each) {
      return !std::isfinite(element_to_float(tensor.dtype, with_gain(tensor.dtype, each, gain)));
    });
    if (bad == end) return;
    fault = fmt::format(
        "element {} is {}, which makes an entry of {} not finite; "
        "calibrate again",
        unit, gain, element_to_float(tensor.dtype, *bad));
  });
  return fault;
}

void take_gain(QuantizedTensor& tensor) {
  const std::vector<float> gains = std::exchange(tensor.gain, {});
  if (gains.empty()) return;
  for_each_unit(tensor,
                [&](const VqFormat& part, std::size_t unit, std::size_t first, std::size_t stage) {
                  const float gain = gains[unit];
                  if (part.stage_scales) {
                    const auto stages = static_cast<std::size_t>(part.num_codebooks);
                    for (std::size_t i = 0; i < stages; ++i) tensor.stage_scales[stage + i] *= gain;
                    return;
                  }
                  for (std::size_t i = first; i < first + elements_of(part); ++i) {
                    tensor.codebooks[i] = with_gain(tensor.dtype, tensor.codebooks[i], gain);
                  }
                });
}

}  // namespace vqgen
