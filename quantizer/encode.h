// From floats to codes, given codebooks as training makes them, and back.
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
  std::vector<std::uint16_t> entries;  // [units][residuals][entries][vector_size], bits of dtype
  std::vector<float> stage_scales;     // [units][residuals]; empty unless format.stage_scales
  // [residuals][vector_size][vector_size], row major, or empty: an entry q of stage s stands for
  // W_s q (SimVQ, as VQKV eq. 1 uses it: one projection a stage).
  std::vector<float> projections;
};

// Error(infeasible) that names `where` and the field where fields of the format go against each
// other (format_fault()).
void require_supported(const VqFormat& format, const std::string& where);

// Replaces every entry q of stage s by W_s q, rounded to the element type, and drops the
// projections: what kernels and encode() need. Nothing happens without projections.
// Error(bad_input) where a product overflows the element type, or entries are to be integers.
void fold_projections(Codebooks& codebooks);

// Codes of `values`, which must stand in the domain that is quantized: keys transformed, weights
// divided by their output scales. Each sub-vector takes the nearest entry, or lattice point, of
// stage 0, then what is left takes the nearest of stage 1, and so on (greedy residual quantization,
// VQKV sec. 3); ties go to the lowest index. Codebooks and stage scales are copied into the result;
// `smooth` and `output_scales` are left empty for the caller to fill. Values must be finite,
// projections folded; keys in parts are encoded part by part (quantizer/parts.h). With group_tokens
// Error(bad_input) where rows are no whole groups.
QuantizedTensor encode(const FloatTensor& values, const Codebooks& codebooks);

// What a scale word of a row says: x = zero + scale * number, the zero being 0 where codes have
// none.
struct TokenScale {
  float scale, zero;
};
TokenScale token_scale(const VqFormat& format, DType dtype, std::uint32_t word);

// Those behind the codes of rows: [batch][heads][rows][columns / scale_channels] with token scales,
// [batch][heads][rows / group_tokens][columns] with group_tokens, which divide the rows.
std::vector<TokenScale> token_scales(const QuantizedTensor& tensor);

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
