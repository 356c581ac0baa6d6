// The codebooks of one tensor, as training makes them and encoding uses them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/format/element.h"
#include "core/format/vq_format.h"

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

// Error(infeasible) that names `where` where int8 entries have no stage scales, or a lattice
// another shape than its one.
void require_supported(const VqFormat& format, const std::string& where);

// Replaces every entry q of stage s by W_s q, rounded to the element type, and drops the
// projections: what kernels and encode() need. Nothing happens without projections.
// Error(bad_input) where a product overflows the element type, or entries are to be integers.
void fold_projections(Codebooks& codebooks);

}  // namespace vqgen
