// Counting how often the codes of quantized tensors name each entry.
#pragma once

#include <string>
#include <vector>

#include "core/hotness/hotness_profile.h"
#include "quantizer/bundle.h"

namespace vqgen {

inline constexpr int kHotnessParts = 8;

// Every stored code is one access, whichever tokens a query attends to. Parts are tokens of a cache
// and output features of weights; 1 <= parts <= 1024. The tensor must be as read_bundle() or
// encode() gives it.
HotnessProfile count_accesses(const QuantizedTensor& tensor, const std::string& item,
                              Operand operand, int parts = kHotnessParts);

// One profile for each quantized tensor, in the order of items; keys stand before values.
std::vector<HotnessProfile> profile_bundle(const Bundle& bundle, int parts = kHotnessParts);

}  // namespace vqgen
