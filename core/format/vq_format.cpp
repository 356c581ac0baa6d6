#include "core/format/vq_format.h"

#include <fmt/format.h>

#include <cmath>

namespace vqgen {
namespace {

// A code of the lattice has one shape.
std::optional<FormatFault> lattice_fault(const VqFormat& format) {
  if (format.decoder != Decoder::e8p) return {};
  if (format.vector_size != kE8pVectorSize || format.index_bits != 16) {
    return FormatFault{"decoder",
                       fmt::format("e8p makes 8 elements of 16 bits, not {} of {}; set vector_size "
                                   "to 8 and index_bits to 16, or decoder to table",
                                   format.vector_size, format.index_bits)};
  }
  if (format.entry_type != EntryType::element) {
    return FormatFault{"entry_type",
                       "e8p has entries of half-integers in the element type; set it to element"};
  }
  return {};
}

// A code without signs is a number of 16 bits at most.
std::optional<FormatFault> number_fault(const VqFormat& format) {
  if (format.decoder == Decoder::signs || format.index_bits <= kMostNumberBits) return {};
  return FormatFault{"index_bits",
                     fmt::format("codes of {} bits go with decoder signs; set it to {} or less",
                                 format.index_bits, kMostNumberBits)};
}

// A code has a bit per element and a number, of one stage.
std::optional<FormatFault> signs_fault(const VqFormat& format) {
  if (format.decoder != Decoder::signs) return {};
  if (format.vector_size > 8) {
    return FormatFault{"vector_size", fmt::format("signs goes with 2, 4 or 8 elements, not {}; set "
                                                  "one of these",
                                                  format.vector_size)};
  }
  if (format.index_bits <= format.vector_size) {
    return FormatFault{"index_bits",
                       fmt::format("a code of {} bits has no bit for an entry beside {} signs; set "
                                   "it to {} or more, or decoder to table",
                                   format.index_bits, format.vector_size, format.vector_size + 1)};
  }
  if (format.num_codebooks != 1) {
    return FormatFault{"num_codebooks",
                       fmt::format("signs has one stage, not {}; remove it", format.num_codebooks)};
  }
  return {};
}

// A code of 16 bits is whole elements, and its entry their scales.
std::optional<FormatFault> scalar_fault(const VqFormat& format) {
  const bool one_entry = format.is_scalar() && format.scope == Scope::tensor;
  if (format.token_scales && !one_entry) {
    return FormatFault{"token_scales",
                       "goes with decoder scalar, affine or e4m3 and scope tensor, whose one entry "
                       "is of ones; set these, or remove it"};
  }
  if (format.group_tokens > 0 && (!one_entry || format.token_scales)) {
    return FormatFault{"group_tokens",
                       "goes with decoder scalar, affine or e4m3, scope tensor and no "
                       "token_scales; set these, or remove it"};
  }
  if (!format.is_scalar()) return {};
  if (format.has_zeros() && !format.token_scales && format.group_tokens == 0) {
    return FormatFault{"decoder",
                       "affine takes token_scales or group_tokens, whose scales its zeros go with; "
                       "set one, or take scalar"};
  }
  const bool floats = format.decoder == Decoder::e4m3;
  const bool fits = format.vector_size == 2 || (format.vector_size == 4 && !floats);
  if (!fits || format.index_bits != 16) {
    return FormatFault{
        "decoder",
        fmt::format("{} makes {} of 16 bits, not {} of {}; set vector_size and index_bits so",
                    enum_name(format.decoder), floats ? "2 elements" : "2 or 4 elements",
                    format.vector_size, format.index_bits)};
  }
  if (format.num_codebooks != 1) {
    return FormatFault{"num_codebooks",
                       fmt::format("{} has one stage, not {}; remove it", enum_name(format.decoder),
                                   format.num_codebooks)};
  }
  if (format.entry_type != EntryType::element || format.stage_scales) {
    return FormatFault{"entry_type",
                       fmt::format("{} has scales for entries; remove entry_type and stage_scales",
                                   enum_name(format.decoder))};
  }
  return {};
}

}  // namespace

std::optional<FormatFault> format_fault(const VqFormat& format) {
  if (auto fault = lattice_fault(format)) return fault;
  if (auto fault = number_fault(format)) return fault;
  if (auto fault = signs_fault(format)) return fault;
  if (auto fault = scalar_fault(format)) return fault;
  if (format.entry_type == EntryType::int8 && !format.stage_scales) {
    return FormatFault{"entry_type",
                       "int8 makes integers of all numbers, which stage scales must bring to size; "
                       "set stage_scales to true, or entry_type to element"};
  }
  if (format.group_scale_bits > 0 && format.group_inputs == 0) {
    return FormatFault{"group_scale_bits",
                       "goes with group_inputs, whose scales have these bits; set it, or remove "
                       "group_scale_bits"};
  }
  if (format.group_minima && format.group_inputs == 0) {
    return FormatFault{"group_minima",
                       "goes with group_inputs, whose scales have minima beside them; set it, or "
                       "remove group_minima"};
  }
  if (format.common_scale && format.entry_type != EntryType::int8) {
    return FormatFault{"common_scale",
                       "goes with entry_type int8, whose stages share a scale; set it, or remove "
                       "common_scale"};
  }
  return {};
}

std::optional<FormatFault> groups_fault(const VqFormat& format, std::int64_t inputs) {
  const vq::GroupScales groups = format.group_scales();
  if (groups.inputs == 0 || inputs % groups.whole() == 0) return {};
  return FormatFault{"group_inputs",
                     fmt::format("{} inputs are no whole {} of {}; pad them with columns of zeros",
                                 inputs, groups.bits > 0 ? "blocks" : "groups", groups.whole())};
}

void VqFormat::take_alone() {
  std::vector<VqFormat> all = std::move(parts);
  const bool centered = center, rotated = klt;
  if (!all.empty()) *this = all.front();
  channels.clear();
  parts = std::move(all);
  center = centered;
  klt = rotated;
}

VqFormat in_parts(std::vector<VqFormat> parts) {
  VqFormat format;
  format.parts = std::move(parts);
  format.take_alone();
  return format;
}

std::int64_t VqFormat::parts_words() const {
  std::int64_t words = 0;
  for (const VqFormat& part : parts) words += part.row_words(std::ssize(part.channels));
  return words;
}

double VqFormat::bits_per_element() const {
  if (!in_parts()) return static_cast<double>(index_bits) * num_codebooks / vector_size;
  double bits = 0, elements = 0;
  for (const VqFormat& part : parts) {
    const auto of_part = static_cast<double>(part.channels.size());
    bits += of_part / part.vector_size * part.num_codebooks * part.index_bits;
    elements += of_part;
  }
  return bits / elements;
}

namespace {

std::string basis_name(const VqFormat& format) {
  return std::string(format.center ? "c" : "") + (format.klt ? "klt" : "") +
         (has_basis(format) ? "_" : "");
}

}  // namespace

std::string short_name(const VqFormat& format) {
  if (format.in_parts()) {
    std::string name;
    for (const VqFormat& part : format.parts) {
      name += (name.empty() ? "" : "_and_") + short_name(part);
    }
    return basis_name(format) + name;
  }
  std::string name =
      basis_name(format) + fmt::format("d{}b{}", format.vector_size, format.index_bits);
  if (format.decoder == Decoder::e8p || format.decoder == Decoder::e4m3) {
    name = enum_name(format.decoder);
  } else if (format.is_scalar()) {
    name = fmt::format("{}{}", format.has_zeros() ? "affine" : "int",
                       format.index_bits / format.vector_size);
  }
  if (format.decoder == Decoder::signs) name += "s";
  if (format.entry_type == EntryType::int8) name += format.common_scale ? "i8c" : "i8";
  if (format.token_scales) name += "t";
  if (format.token_scales && format.group_channels > 0) {
    name += std::to_string(format.group_channels);
  }
  if (format.group_tokens > 0) name += fmt::format("g{}", format.group_tokens);
  if (format.group_inputs > 0) name += fmt::format("g{}", format.group_inputs);
  if (format.group_scale_bits > 0) name += fmt::format("s{}", format.group_scale_bits);
  if (format.group_minima) name += "m";
  if (format.num_codebooks > 1) name += fmt::format("x{}", format.num_codebooks);
  if (!format.layout.plain()) {
    name += fmt::format("_l{}x{}", format.layout.rows, format.layout.words);
  }
  return name;
}

VqFormat with_layout(VqFormat format, const CodeLayout& layout) {
  format.layout = layout;
  for (VqFormat& part : format.parts) part.layout = layout;
  return format;
}

VqFormat without_layout(VqFormat format) { return with_layout(std::move(format), {}); }

VqFormat part_alone(VqFormat part) {
  part.channels.clear();
  part.layout = {};
  return part;
}

VqFormat for_values(VqFormat format) {
  format.smooth = false;
  format.hadamard = false;
  return format;
}

std::string layout_problem(const CodeLayout& layout) {
  const auto fine = [](int n) { return n == 1 || n == 2 || n == 4; };
  if (layout == CodeLayout{kWideRows, 1}) return "";
  if (fine(layout.rows) && fine(layout.words) && layout.rows * layout.words <= kMostRunWords) {
    return "";
  }
  return fmt::format(
      "no kernel reads groups of {} rows in runs of {} words; use 1, 2 or 4 of each, {} in all at "
      "most, or {} rows and 1 word",
      layout.rows, layout.words, kMostRunWords, kWideRows);
}

std::string layout_problem(const VqFormat& format, const CodeLayout& layout) {
  if (format.in_parts() && layout.words > 1) {
    return fmt::format("rows in parts have runs of 1 word, not of {}", layout.words);
  }
  bool all_wide = true;
  for_each_part(format, 0, [&](const VqFormat& part, int) { all_wide &= part.is_wide(); });
  if (layout.rows == kWideRows && !all_wide) {
    return fmt::format("groups of {} rows are of sub-vectors of 16 and more channels; use 4 rows",
                       kWideRows);
  }
  return layout_problem(layout);
}

float scalar_peak(const VqFormat& format) {
  if (format.decoder == Decoder::e4m3) return 448.0f;
  const int bits = format.index_bits / format.vector_size;
  return static_cast<float>((1 << (format.has_zeros() ? bits : bits - 1)) - 1);
}

bool fits_entries(const VqFormat& format, float value) {
  if (format.decoder == Decoder::e8p) return is_e8p_element(value);
  if (format.is_scalar()) return std::isfinite(value) && value > 0;
  if (format.decoder == Decoder::signs && !(value >= 0)) return false;
  if (format.entry_type == EntryType::element) return true;
  return std::abs(value) <= static_cast<float>(format.entry_peak()) && std::round(value) == value;
}

std::string entry_numbers(const VqFormat& format) {
  if (format.decoder == Decoder::e8p) return "half-integers from 1/2 to 7/2";
  if (format.is_scalar()) return "scales, finite and above 0";
  const bool signs = format.decoder == Decoder::signs;
  if (format.entry_type == EntryType::element) {
    return signs ? "finite numbers from 0 on" : "finite numbers";
  }
  return fmt::format("integers from {} to {}", signs ? 0 : -format.entry_peak(),
                     format.entry_peak());
}

bool fits_stage_scales(const VqFormat& format, std::span<const float> scales) {
  if (!format.common_scale) return true;
  const auto stages = static_cast<std::size_t>(format.num_codebooks);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    if (scales[i] != scales[i / stages * stages]) return false;
  }
  return true;
}

}  // namespace vqgen
