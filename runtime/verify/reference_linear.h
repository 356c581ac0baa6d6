// gemv in double precision, from the same codes and codebooks as the kernels.
#pragma once

#include <vector>

#include "core/format/quantized_tensor.h"

namespace vqgen {

// y[r][o] = output_scale[o] * sum over i of x[r][i] * W~[o][i], as [input_rows][out_features]; of
// experts with the scales and weights of the one whose row r is.
// Throws Error(bad_input) where sizes contradict each other, Error(infeasible) as RowDecoder does.
std::vector<double> reference_linear(const LinearData& data);

// reference_linear over original_weights, which carry their output scales in them. No codes are
// read. Throws Error(bad_input) where the originals were not kept.
std::vector<double> reference_linear_unquantized(const LinearData& data);

}  // namespace vqgen
