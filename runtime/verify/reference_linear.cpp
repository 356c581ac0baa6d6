#include "runtime/verify/reference_linear.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "core/error.h"
#include "core/parallel.h"
#include "runtime/verify/row_decoder.h"

namespace vqgen {
namespace {

using ReadRow = std::function<void(std::int64_t, std::span<double>)>;

// read_row(o, row) puts row o of the weights, output scale left out, in `row`.
std::vector<double> gemv(const LinearData& data, const ReadRow& read_row) {
  const auto columns = static_cast<std::size_t>(data.weights.columns);
  const auto outputs = static_cast<std::size_t>(data.weights.rows);
  const auto inputs = static_cast<std::size_t>(data.input_rows);
  require(data.x.size() == inputs * columns, "gemv data: x is not [input_rows][in_features]");
  std::vector<double> x(data.x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = element_value(data.dtype, data.x[i]);
  std::vector<double> y(inputs * outputs);
  constexpr std::size_t kShare = 128;  // outputs of a task
  const int threads = reference_threads(std::ssize(x) * data.weights.rows);
  in_parallel((outputs + kShare - 1) / kShare, threads, [&](std::size_t share) {
    std::vector<double> row(columns);
    for (std::size_t o = share * kShare; o < std::min(outputs, (share + 1) * kShare); ++o) {
      read_row(static_cast<std::int64_t>(o), row);
      for (std::size_t r = 0; r < inputs; ++r) {
        const double* from = x.data() + r * columns;
        double sum = 0;
        for (std::size_t i = 0; i < columns; ++i) sum += from[i] * row[i];
        y[r * outputs + o] = sum;
      }
    }
  });
  return y;
}

}  // namespace

std::vector<double> reference_linear(const LinearData& data) {
  const RowDecoder weights(data.weights);
  std::vector<double> y =
      gemv(data, [&](std::int64_t o, std::span<double> row) { weights.decode(0, 0, o, row); });
  const std::vector<float>& scales = data.weights.output_scales;
  for (std::size_t i = 0; i < y.size() && !scales.empty(); ++i) {
    y[i] *= static_cast<double>(scales[i % scales.size()]);
  }
  return y;
}

std::vector<double> reference_linear_unquantized(const LinearData& data) {
  const std::int64_t columns = data.weights.columns;
  require(!data.original_weights.empty(),
          "gemv data: the weights before quantization were not kept");
  require(std::ssize(data.original_weights) == data.weights.rows * columns,
          "gemv data: original_weights are not [out_features][in_features]");
  return gemv(data, [&](std::int64_t o, std::span<double> row) {
    const std::uint16_t* bits = data.original_weights.data() + o * columns;
    for (double& value : row) value = element_value(data.dtype, *bits++);
  });
}

}  // namespace vqgen
