// From codes back to floats, for reports and tests.
#pragma once

#include "core/quantized_tensor.h"
#include "quantizer/float_tensor.h"

namespace vqgen {

// What the codes say, in the domain that was quantized: sums of scale * entry over the stages.
FloatTensor decode(const QuantizedTensor& tensor);

// The same in the domain of the tensor before quantization: output scales multiplied in, rotation
// and smoothing undone.
FloatTensor reconstruct(const QuantizedTensor& tensor);

// All codes, [batch * heads * rows][columns / vector_size][residuals].
std::vector<std::uint32_t> unpack_codes(const QuantizedTensor& tensor);

// The numbers that the codes of `unit` stand for, scale * entry: [residuals][entries][vector_size].
std::vector<float> scaled_entries(const QuantizedTensor& tensor, std::int64_t unit);

struct ReconstructionError {
  double mse = 0;       // mean squared error
  double relative = 0;  // |x - x'| / |x|; 0 where both are zero
};
ReconstructionError reconstruction_error(const FloatTensor& original,
                                         const FloatTensor& reconstructed);

}  // namespace vqgen
