// Encodes floats with given codebooks, and decodes.
#pragma once

#include <span>
#include <string>

#include "core/format/quantized_tensor.h"
#include "quantizer/units.h"

namespace vqgen {

struct Codebooks {
  VqFormat format;
  DType dtype = DType::f16;
  std::int64_t units = 0;
  std::vector<std::uint16_t>
      entries;                      // [units][num_codebooks][entries][vector_size], bits of dtype
  std::vector<float> stage_scales;  // [units][num_codebooks]; empty unless format.stage_scales
  // [num_codebooks][vector_size][vector_size], row major, or empty: an entry q of stage s stands
  // for W_s q, with one projection per stage (SimVQ, as in VQKV eq. 1).
  std::vector<float> projections;
};

// Error(infeasible) that names `where` and the field where fields of the format go against each
// other (format_fault()).
void require_supported(const VqFormat& format, const std::string& where);

// Replaces every entry q of stage s by W_s q, rounded to the element type, and drops the
// projections: what kernels and encode() need. Nothing happens without projections.
// Error(bad_input) where a product overflows the element type, or entries are to be integers.
void fold_projections(Codebooks& codebooks);

// Encodes finite `values` in the quantized domain (keys transformed, weights divided by output
// scales) by greedy residual quantization (VQKV sec. 3), ties to the lowest index. The caller fills
// `smooth` and `output_scales`. Error(bad_input) if group_tokens does not divide the rows.
QuantizedTensor encode(const FloatTensor& values, const Codebooks& codebooks);

// A row's scale word: x = zero + scale * number, with zero 0 if codes have none.
struct TokenScale {
  float scale, zero;
};
TokenScale token_scale(const VqFormat& format, DType dtype, std::uint32_t word);

// Error(bad_input) that begins with `name` where a scale word of the values is not finite in dtype.
// For formats with such words, and rows that group_tokens divides.
void require_scales(const FloatTensor& values, const VqFormat& format, DType dtype,
                    const std::string& name);

// Scale words of the rows: [batch][heads][rows][columns / scale_channels] with token scales,
// [batch][heads][rows / group_tokens][columns] with group_tokens, which must divide the rows.
std::vector<TokenScale> token_scales(const QuantizedTensor& tensor);

// Decodes the codes in the quantized domain: sums of scale * entry over the stages.
FloatTensor decode(const QuantizedTensor& tensor);

// decode() in the domain before quantization: multiplies by output scales, undoes rotation and
// smoothing.
FloatTensor reconstruct(const QuantizedTensor& tensor);

// Decodes the codes of one unit.
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
  std::vector<float> entries_;  // [num_codebooks][entries][vector_size]
  std::vector<float> scales_;   // [num_codebooks]
  std::vector<float> point_;    // [vector_size]
};

struct ReconstructionError {
  double mse = 0;       // mean squared error
  double relative = 0;  // |x - x'| / |x|; 0 where both are zero
};
ReconstructionError reconstruction_error(const FloatTensor& original,
                                         const FloatTensor& reconstructed);

}  // namespace vqgen
