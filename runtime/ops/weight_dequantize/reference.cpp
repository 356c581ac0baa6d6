#include "runtime/ops/weight_dequantize/reference.h"

#include <cstddef>
#include <span>

#include "core/parallel.h"
#include "runtime/verify/row_decoder.h"

namespace vqgen {

std::vector<double> reference_weight_rows(const WeightRowsData& data) {
  const QuantizedTensor& weights = data.weights;
  require(data.first_row >= 0 && data.rows >= 0 && data.first_row + data.rows <= weights.rows,
          "weight rows: they leave the matrix");
  const RowDecoder decoder(weights);
  const auto columns = static_cast<std::size_t>(weights.columns);
  std::vector<double> all(static_cast<std::size_t>(data.rows) * columns);
  const int threads = reference_threads(std::ssize(all));
  in_parallel(static_cast<std::size_t>(data.rows), threads, [&](std::size_t r) {
    const std::int64_t row = data.first_row + static_cast<std::int64_t>(r);
    const std::span<double> out(all.data() + r * columns, columns);
    decoder.decode(0, 0, row, out);
    if (weights.output_scales.empty()) return;
    const auto scale = static_cast<double>(weights.output_scales[static_cast<std::size_t>(row)]);
    for (double& value : out) value *= scale;
  });
  return all;
}

std::vector<double> reference_weight_rows_unquantized(const WeightRowsData& data) {
  const std::int64_t columns = data.weights.columns;
  require(std::ssize(data.original_weights) == data.weights.rows * columns,
          "weight rows: original_weights are not [out_features][in_features]");
  std::vector<double> all;
  for (std::int64_t i = 0; i < data.rows * columns; ++i) {
    const auto at = static_cast<std::size_t>(data.first_row * columns + i);
    all.push_back(element_value(data.dtype, data.original_weights[at]));
  }
  return all;
}

}  // namespace vqgen
