// Hard data of GEMM and GEMV.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "runtime/ops/linear/reference.h"

namespace vqgen {
namespace {

// Independent streams of one seed.
enum LinearStream : std::uint64_t {
  kBooks = 0,
  kWeightCodes = 2,
  kInputs = 4,
  kExperts = 8,
  kResidual = 16
};

// The rows of each expert, at least one row in all.
std::vector<std::int32_t> rows_of_experts(const LinearShape& shape, const HardInput& input,
                                          Random& random) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(shape.experts));
  std::int32_t left = shape.call_rows();
  if (input.lengths == LengthPattern::ragged) {
    const std::int32_t musts[] = {std::min(shape.rows, left), 0, 1};
    for (std::size_t e = 0; e < rows.size(); ++e) {
      const auto drawn = static_cast<std::int32_t>(random.below(shape.rows + 1));
      rows[e] = std::min(e < std::size(musts) ? musts[e] : drawn, left);
      left -= rows[e];
    }
  } else {
    const int most = shape.most_touched();
    const int touched = input.active_experts > 0 ? std::min(input.active_experts, most) : most;
    for (int i = 0; i < touched; ++i) {
      rows[static_cast<std::size_t>(i)] = std::min(shape.rows, left / (touched - i));
      left -= rows[static_cast<std::size_t>(i)];
    }
  }
  random.shuffle(rows);
  return rows;
}

}  // namespace

LinearData make_linear_data(const Linear& problem, const HardInput& input) {
  const LinearShape& shape = problem.shape;
  LinearData data;
  data.dtype = problem.dtype;
  data.input_rows = shape.rows;
  if (shape.grouped()) {
    Random experts(input.seed, kExperts);
    data.expert_rows = offsets_of(rows_of_experts(shape, input, experts));
    data.input_rows = data.expert_rows.back();
  }
  const std::int64_t units = weight_units(problem);
  const TensorShape tensor{.heads = shape.matrices(),
                           .rows = shape.out_features,
                           .columns = shape.in_features,
                           .units = units,
                           .expert_units = shape.grouped() ? units / shape.experts : 0};
  // At least 2^-7: with later stages at 2^-4 of it, entries stay clear of f16's subnormals.
  const double magnitude = std::max(1 / std::sqrt(static_cast<double>(shape.in_features)), 0x1p-7);
  Random books(input.seed, kBooks);
  data.weights = make_hard_tensor(problem.weights, problem.dtype, tensor, magnitude, books);
  Random codes(input.seed, kWeightCodes);
  fill_codes(data.weights, law_of(input, 0), codes);
  Random inputs(input.seed, kInputs);
  data.x = outlier_rows(problem.dtype, data.input_rows, shape.in_features, 0, inputs);
  set_epilogue(data, problem, input.seed);
  return data;
}

void set_epilogue(LinearData& data, const Linear& problem, std::uint64_t seed) {
  const LinearShape& shape = problem.shape;
  data.gate_rows = shape.gate == Gate::none ? 0 : shape.gate_rows;
  data.multiplier = shape.multiplier;
  if (!shape.residual) return;
  Random random(seed, kResidual);
  data.residual = outlier_rows(problem.dtype, data.input_rows, shape.y_columns(), 0, random);
}

}  // namespace vqgen
