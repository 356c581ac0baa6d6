// Judges weight_dequantize in double precision, from the same codes and codebooks as the kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "core/problem/problem.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// Data of one weight_dequantize call, of rows [first_row, first_row + rows).
struct WeightRowsData {
  DType dtype = DType::f16;
  QuantizedTensor weights;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::vector<std::uint16_t> original_weights;  // [out_features][in_features]; empty if not kept
};

// output_scale[o] * W~[o][i] of the rows, as [rows][in_features]. Throws Error(bad_input) if sizes
// contradict each other, and Error(infeasible) as RowDecoder does.
std::vector<double> reference_weight_rows(const WeightRowsData& data);

// The rows before quantization, of original_weights, which the data must have.
std::vector<double> reference_weight_rows_unquantized(const WeightRowsData& data);

// The weights of a linear op, and a first row that is drawn.
WeightRowsData make_weight_rows_data(const WeightDequantize& problem, const HardInput& input);

}  // namespace vqgen
