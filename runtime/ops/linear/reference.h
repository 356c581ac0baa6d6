// gemv in double precision, from the same codes and codebooks as the kernels.
#pragma once

#include <vector>

#include "core/format/quantized_tensor.h"
#include "core/problem/problem.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// y[r][o] = output_scale[o] * sum over i of x[r][i] * W~[o][i], as [input_rows][out_features]; of
// experts with the scales and weights of the one whose row r is.
// Throws Error(bad_input) where sizes contradict each other, Error(infeasible) as RowDecoder does.
std::vector<double> reference_linear(const LinearData& data);

// reference_linear over original_weights, which carry their output scales in them. No codes are
// read. Throws Error(bad_input) where the originals were not kept.
std::vector<double> reference_linear_unquantized(const LinearData& data);

// y is of O(1) before output scales. input.lengths is of experts' rows alone. full: call_rows()
// dealt out evenly to the touched experts, which are drawn, as far as these may have them. ragged:
// none, one, the most and numbers between, no more than call_rows() together.
LinearData make_linear_data(const Linear& problem, const HardInput& input);

}  // namespace vqgen
