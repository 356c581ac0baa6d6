// What numbers the entries of a format may be, wherever they come from: training, bundles, calls.
#pragma once

#include "core/format/vq_format.h"

namespace vqgen {

inline constexpr float kInt8Peak = 127.0f;  // the largest magnitude of int8 entries

// May `value`, which is finite, stand among the entries of the format?
bool fits_entries(const VqFormat& format, float value);

// What may, as messages say it: "half-integers from 1/2 to 7/2".
const char* entry_numbers(const VqFormat& format);

}  // namespace vqgen
