#include "core/format/entries.h"

#include <cmath>

#include "core/format/e8p.h"

namespace vqgen {

bool fits_entries(const VqFormat& format, float value) {
  if (format.decoder == Decoder::e8p) return is_e8p_element(value);
  if (format.entry_type == EntryType::element) return true;
  return std::abs(value) <= kInt8Peak && std::round(value) == value;
}

const char* entry_numbers(const VqFormat& format) {
  if (format.decoder == Decoder::e8p) return "half-integers from 1/2 to 7/2";
  return format.entry_type == EntryType::element ? "finite numbers" : "integers from -127 to 127";
}

}  // namespace vqgen
