// From floats to codes, given codebooks.
#pragma once

#include "core/format/quantized_tensor.h"
#include "quantizer/codebooks.h"
#include "quantizer/float_tensor.h"

namespace vqgen {

// Codes of `values`, which must stand in the domain that is quantized: keys transformed, weights
// divided by their output scales. Each sub-vector takes the nearest entry, or lattice point, of
// stage 0, then what is left takes the nearest of stage 1, and so on (greedy residual quantization,
// VQKV sec. 3); ties go to the lowest index. Codebooks and stage scales are copied into the result;
// `smooth` and `output_scales` are left empty for the caller to fill. Values must be finite,
// projections folded.
QuantizedTensor encode(const FloatTensor& values, const Codebooks& codebooks);

}  // namespace vqgen
