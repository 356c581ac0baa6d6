#include "core/format/vq_format.h"

#include <fmt/format.h>

#include <cmath>

namespace vqgen {

std::string short_name(const VqFormat& format) {
  std::string name = fmt::format("d{}b{}", format.vector_size, format.index_bits);
  if (format.decoder == Decoder::e8p || format.decoder == Decoder::e4m3) {
    name = enum_name(format.decoder);
  } else if (format.is_scalar()) {
    name = fmt::format("{}{}", format.has_zeros() ? "affine" : "int",
                       format.index_bits / format.vector_size);
  }
  if (format.entry_type == EntryType::int8) name += "i8";
  if (format.token_scales) name += "t";
  if (format.token_scales && format.group_channels > 0) {
    name += std::to_string(format.group_channels);
  }
  if (format.group_tokens > 0) name += fmt::format("g{}", format.group_tokens);
  if (format.residuals > 1) name += fmt::format("x{}", format.residuals);
  if (!format.layout.plain()) {
    name += fmt::format("_l{}x{}", format.layout.rows, format.layout.words);
  }
  return name;
}

VqFormat without_layout(VqFormat format) {
  format.layout = {};
  return format;
}

VqFormat for_values(VqFormat format) {
  format.smooth = false;
  format.hadamard = false;
  return format;
}

std::string layout_problem(const CodeLayout& layout) {
  const auto fine = [](int n) { return n == 1 || n == 2 || n == 4; };
  if (fine(layout.rows) && fine(layout.words) && layout.rows * layout.words <= kMostRunWords) {
    return "";
  }
  return fmt::format(
      "no kernel reads groups of {} rows in runs of {} words; use 1, 2 or 4 of each, {} in all at "
      "most",
      layout.rows, layout.words, kMostRunWords);
}

float scalar_peak(const VqFormat& format) {
  if (format.decoder == Decoder::e4m3) return 448.0f;
  const int bits = format.index_bits / format.vector_size;
  return static_cast<float>((1 << (format.has_zeros() ? bits : bits - 1)) - 1);
}

bool fits_entries(const VqFormat& format, float value) {
  if (format.decoder == Decoder::e8p) return is_e8p_element(value);
  if (format.is_scalar()) return std::isfinite(value) && value > 0;
  if (format.entry_type == EntryType::element) return true;
  return std::abs(value) <= kInt8Peak && std::round(value) == value;
}

const char* entry_numbers(const VqFormat& format) {
  if (format.decoder == Decoder::e8p) return "half-integers from 1/2 to 7/2";
  if (format.is_scalar()) return "scales, finite and above 0";
  return format.entry_type == EntryType::element ? "finite numbers" : "integers from -127 to 127";
}

}  // namespace vqgen
