// Hard data of weight_dequantize: the weights of a linear op.
#include "runtime/ops/linear/reference.h"
#include "runtime/ops/weight_dequantize/reference.h"

namespace vqgen {

WeightRowsData make_weight_rows_data(const WeightDequantize& problem, const HardInput& input) {
  constexpr std::uint64_t kFirstRow = 16;  // a stream of the seed that those weights do not draw of
  const WeightRowsShape& s = problem.shape;
  const Linear reader{problem.dtype,
                      {.rows = 1, .out_features = s.out_features, .in_features = s.in_features},
                      problem.weights};
  Random random(input.seed, kFirstRow);
  WeightRowsData data;
  data.dtype = problem.dtype;
  data.weights = make_linear_data(reader, input).weights;
  data.rows = s.rows;
  data.first_row = random.below(s.out_features - s.rows + 1);
  return data;
}

}  // namespace vqgen
