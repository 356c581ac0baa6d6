#include "runtime/ops/linear/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "core/error.h"
#include "core/parallel.h"
#include "runtime/verify/row_decoder.h"

namespace vqgen {
namespace {

using ReadRow = std::function<void(std::int64_t, std::int64_t, std::span<double>)>;

// Rows [first, last) of x that one matrix serves.
struct RowsOfX {
  std::size_t first, last;
};

// The experts' ranges of rows, checked; a single matrix has all rows.
std::vector<RowsOfX> rows_of_matrices(const LinearData& data) {
  if (data.expert_rows.empty()) return {{0, static_cast<std::size_t>(data.input_rows)}};
  require(std::ssize(data.expert_rows) == data.weights.heads + 1,
          "gemv data: expert_rows are not [experts + 1]");
  std::vector<RowsOfX> rows;
  for (std::size_t e = 0; e + 1 < data.expert_rows.size(); ++e) {
    const std::int32_t first = data.expert_rows[e];
    const std::int32_t last = data.expert_rows[e + 1];
    require(first >= 0 && first <= last && last <= data.input_rows,
            "gemv data: expert_rows descend or leave the rows of x");
    rows.push_back({static_cast<std::size_t>(first), static_cast<std::size_t>(last)});
  }
  return rows;
}

// read_row(e, o, row) writes row o of expert e's weights, without output scale, to `row`. Rows of
// no expert stay 0.
std::vector<double> gemv(const LinearData& data, const ReadRow& read_row) {
  const auto columns = static_cast<std::size_t>(data.weights.columns);
  const auto outputs = static_cast<std::size_t>(data.weights.rows);
  const auto inputs = static_cast<std::size_t>(data.input_rows);
  require(data.x.size() == inputs * columns, "gemv data: x is not [input_rows][in_features]");
  const std::vector<RowsOfX> rows = rows_of_matrices(data);
  std::vector<double> x(data.x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = element_value(data.dtype, data.x[i]);
  std::vector<double> y(inputs * outputs);
  constexpr std::size_t kShare = 128;  // outputs per task
  const std::size_t shares = (outputs + kShare - 1) / kShare;
  const int threads = reference_threads(std::ssize(x) * data.weights.rows);
  in_parallel(rows.size() * shares, threads, [&](std::size_t task) {
    const std::size_t expert = task / shares;
    const std::size_t share = task % shares;
    const auto [first, last] = rows[expert];
    if (first == last) return;
    std::vector<double> row(columns);
    for (std::size_t o = share * kShare; o < std::min(outputs, (share + 1) * kShare); ++o) {
      read_row(static_cast<std::int64_t>(expert), static_cast<std::int64_t>(o), row);
      for (std::size_t r = first; r < last; ++r) {
        const double* from = x.data() + r * columns;
        double sum = 0;
        for (std::size_t i = 0; i < columns; ++i) sum += from[i] * row[i];
        y[r * outputs + o] = sum;
      }
    }
  });
  return y;
}

// y of the sums of all rows of W. Rows of x that no expert has stay 0.
std::vector<double> ended(const LinearData& data, const std::vector<double>& sums) {
  const auto outputs = static_cast<std::size_t>(data.weights.rows);
  const auto run = static_cast<std::size_t>(data.gate_rows);
  const std::size_t columns = run == 0 ? outputs : outputs / 2;
  const auto rows = static_cast<std::size_t>(data.input_rows);
  require(data.residual.empty() || data.residual.size() == rows * columns,
          "gemv data: residual is not [input_rows][columns of y]");
  std::vector<double> y(rows * columns);
  for (const RowsOfX& own : rows_of_matrices(data)) {
    for (std::size_t r = own.first; r < own.last; ++r) {
      for (std::size_t j = 0; j < columns; ++j) {
        const double* row = sums.data() + r * outputs;
        double value = row[j];
        if (run > 0) {
          const double* gate = row + j / run * run * 2 + j % run;
          value = gate[0] / (1 + std::exp(-gate[0])) * gate[run];
        }
        value *= data.multiplier;
        if (!data.residual.empty())
          value += element_value(data.dtype, data.residual[r * columns + j]);
        y[r * columns + j] = value;
      }
    }
  }
  return y;
}

}  // namespace

std::vector<double> reference_linear(const LinearData& data) {
  const RowDecoder weights(data.weights);
  const std::vector<float>& scales = data.weights.output_scales;
  std::vector<double> y = gemv(data, [&](std::int64_t e, std::int64_t o, std::span<double> row) {
    weights.decode(0, e, o, row);
  });
  if (scales.empty()) return ended(data, y);
  const auto outputs = static_cast<std::size_t>(data.weights.rows);
  const std::vector<RowsOfX> rows = rows_of_matrices(data);
  for (std::size_t e = 0; e < rows.size(); ++e) {
    for (std::size_t i = rows[e].first * outputs; i < rows[e].last * outputs; ++i) {
      y[i] *= static_cast<double>(scales[e * outputs + i % outputs]);
    }
  }
  return ended(data, y);
}

std::vector<double> reference_linear_unquantized(const LinearData& data) {
  const std::int64_t columns = data.weights.columns;
  require(!data.original_weights.empty(),
          "gemv data: the weights before quantization were not kept");
  require(std::ssize(data.original_weights) == data.weights.rows * columns,
          "gemv data: original_weights are not [out_features][in_features]");
  return ended(data, gemv(data, [&](std::int64_t, std::int64_t o, std::span<double> row) {
                 const std::uint16_t* bits = data.original_weights.data() + o * columns;
                 for (double& value : row) value = element_value(data.dtype, *bits++);
               }));
}

}  // namespace vqgen
