// Codebooks of elements as int8 entries, codes unchanged.
#pragma once

#include <string>

#include "core/format/quantized_tensor.h"

namespace vqgen {

// Rounds a tensor's entries to integers with stage scales: a stage's largest magnitude becomes 127,
// or 127 / num_codebooks for weights with several stages, which share a scale. Returns |x - x'| /
// |x|. Error(infeasible) naming `where`, nothing changed, for formats without integer entries.
double round_to_integers(QuantizedTensor& tensor, bool weights, const std::string& where);

}  // namespace vqgen
