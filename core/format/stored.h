// The stored form of a format's rows, in numbers and in words for people.
#pragma once

#include <cstdint>
#include <string>

#include "core/format/vq_format.h"

namespace vqgen {

// Bits per number of a row of `columns` numbers: its codes, the scales of tokens and groups beside
// them, and the padding to words, without codebooks. Keys in parts have the columns of their parts.
double stored_bits(const VqFormat& format, std::int64_t columns);

// "a code of 8 bits names one of 256 entries of 4 numbers, 1 summed", or what numbers it is.
std::string codes_text(const VqFormat& format);

}  // namespace vqgen
