// GEMM and GEMV in double precision, from the same codes and codebooks as the kernels.
#pragma once

#include <vector>

#include "core/format/quantized_tensor.h"
#include "core/problem/problem.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// z[r][o] = output_scale[o] * sum over i of x[r][i] * W~[o][i], with the weights of the expert that
// has row r. y = z as [input_rows][out_features]; with gate_rows, y[r][j] is silu(z of gate row j)
// times z of up row j. Then y is multiplied, and the residual is added. Throws Error(bad_input) if
// sizes contradict each other, and Error(infeasible) as RowDecoder does.
std::vector<double> reference_linear(const LinearData& data);

// reference_linear over original_weights, which include their output scales; the epilogue is the
// same. Reads no codes. Throws
// Error(bad_input) if the originals were not kept.
std::vector<double> reference_linear_unquantized(const LinearData& data);

// y is O(1) before output scales. input.lengths concerns experts' rows alone. full: call_rows()
// split evenly over the touched experts, which are drawn. ragged: none, one, the most and numbers
// between, at most call_rows() in total.
LinearData make_linear_data(const Linear& problem, const HardInput& input);
// Sets what the problem's epilogue takes, for data of `input_rows` rows; a residual is drawn.
void set_epilogue(LinearData& data, const Linear& problem, std::uint64_t seed);

}  // namespace vqgen
