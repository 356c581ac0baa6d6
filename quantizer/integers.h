// Codebooks of elements as int8 entries, codes unchanged.
#pragma once

#include <string>

#include "core/format/quantized_tensor.h"

namespace vqgen {

// Rounds the entries of a tensor to integers with stage scales: the largest magnitude of a stage
// becomes 127; of several stages of weights, which then have a common scale, the largest of all
// 127 / residuals. Returns |x - x'| / |x| over all elements, 0 where all are zero.
// Error(infeasible) that names `where`, and nothing written, for formats whose entries cannot be
// integers: other decoders than table, keys in parts, vector sizes beside 4 and 8, and entries that
// are integers.
double round_to_integers(QuantizedTensor& tensor, bool weights, const std::string& where);

}  // namespace vqgen
