// From codes back to floats, for reports and tests.
#pragma once

#include <span>

#include "core/format/quantized_tensor.h"
#include "quantizer/float_tensor.h"

namespace vqgen {

// What the codes say, in the domain that was quantized: sums of scale * entry over the stages.
FloatTensor decode(const QuantizedTensor& tensor);

// The same in the domain of the tensor before quantization: output scales multiplied in, rotation
// and smoothing undone.
FloatTensor reconstruct(const QuantizedTensor& tensor);

// What the codes of one unit stand for.
class UnitDecoder {
 public:
  // Copies what it needs.
  UnitDecoder(const QuantizedTensor& tensor, std::int64_t unit);

  // The numbers of a code, [vector_size]; good until the next call.
  std::span<const float> numbers(int stage, std::uint32_t code);

  // The stage's entries, [entries][vector_size]: of a table times the stage's scale, of a lattice
  // as they are stored.
  std::span<const float> entries(int stage) const;
  float scale(int stage) const;

 private:
  VqFormat format_;
  std::vector<float> entries_;  // [residuals][entries][vector_size]
  std::vector<float> scales_;   // [residuals]
  std::vector<float> point_;    // [vector_size]
};

struct ReconstructionError {
  double mse = 0;       // mean squared error
  double relative = 0;  // |x - x'| / |x|; 0 where both are zero
};
ReconstructionError reconstruction_error(const FloatTensor& original,
                                         const FloatTensor& reconstructed);

}  // namespace vqgen
