// The gain of keys: entries at the length of what they stand for.
#pragma once

#include <string>

#include "quantizer/encode.h"

namespace vqgen {

// Multiplies the entries of each unit, or its stage scales if the format has them, by
// g = sum z.z / sum z.z', over the unit's vectors z of `calibration` and the z' of their codes. The
// decoder must be table. Error(bad_input) that begins with `name` if an entry leaves its type.
//
// Entries of k-means are means, and shorter than what they stand for by all that codes lose: scores
// of quantized keys come out too small beside those of raw ones.
void apply_gain(Codebooks& codebooks, const FloatTensor& calibration, const std::string& name);

}  // namespace vqgen
