// How far a GEMM's results may be off because its terms cancel.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "runtime/verify/row_decoder.h"

namespace vqgen::test {

// How much the terms of the sums outweigh `reference` (reference_linear(data)): the norm of each
// output's terms, taken as independent, over the results' norm; at least 1. Rounding the weights to
// 16 bits costs this much more; with equal codes in a row, few distinct terms may nearly cancel.
inline double linear_cancellation(const LinearData& data, const std::vector<double>& reference) {
  const RowDecoder weights(data.weights);
  std::vector<double> row(static_cast<std::size_t>(data.weights.columns));
  double terms = 0;
  for (std::int64_t e = 0; e < data.weights.heads; ++e) {
    const bool one = data.expert_rows.empty();
    const auto expert = static_cast<std::size_t>(e);
    const auto first = one ? 0 : static_cast<std::size_t>(data.expert_rows[expert]);
    const auto last =
        static_cast<std::size_t>(one ? data.input_rows : data.expert_rows[expert + 1]);
    for (std::int64_t o = 0; o < data.weights.rows; ++o) {
      weights.decode(0, e, o, row);
      const auto output = static_cast<std::size_t>(e * data.weights.rows + o);
      const std::vector<float>& scales = data.weights.output_scales;
      const double scale = scales.empty() ? 1.0 : static_cast<double>(scales[output]);
      for (std::size_t i = first * row.size(); i < last * row.size(); ++i) {
        const double x = element_value(data.dtype, data.x[i]);
        terms += std::pow(scale * x * row[i % row.size()], 2);
      }
    }
  }
  double results = 0;
  for (const double each : reference) results += each * each;
  return results > 0 ? std::max(1.0, std::sqrt(terms / results)) : 1.0;
}

}  // namespace vqgen::test
