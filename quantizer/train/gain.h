// The gain of keys: by which entries are longer where codes are read.
#pragma once

#include <string>
#include <vector>

#include "quantizer/encode.h"

namespace vqgen {

// The gain of each unit, g = sum z.z / sum z.z', over the unit's vectors z of `calibration` and the
// z' of their codes. The decoder must be table. Error(bad_input) that begins with `name` if an
// entry times its gain leaves its type.
//
// Entries of k-means are means, and shorter than what they stand for by all that codes lose: scores
// of quantized keys come out too small beside those of raw ones. Codes are the nearest entries
// without the gain: entries with it would be chosen so that half of it is lost again.
std::vector<float> gains_of(const Codebooks& codebooks, const FloatTensor& calibration,
                            const std::string& name);

}  // namespace vqgen
