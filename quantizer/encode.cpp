#include "quantizer/encode.h"
#include "quantizer/basis.h"

#include <fmt/format.h>
#include <vq/layout/codes.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <variant>

#include "core/error.h"
#include "core/format/vq_format.h"
#include "quantizer/group_scales.h"
#include "quantizer/nearest.h"
#include "quantizer/pack.h"
#include "quantizer/parts.h"
#include "quantizer/scalar.h"
#include "quantizer/transform.h"
#include "quantizer/units.h"

namespace vqgen {
namespace {

// Encodes the sub-vectors of one unit, a chunk at a time: enough for all cores.
class UnitEncoder {
 public:
  UnitEncoder(const QuantizedTensor& tensor, std::int64_t unit)
      : size_(static_cast<std::size_t>(tensor.format.vector_size)), decoder_(tensor, unit) {
    for (int stage = 0; stage < tensor.format.num_codebooks; ++stage) {
      if (tensor.format.decoder == Decoder::e8p) {
        searches_.emplace_back(NearestPoint(decoder_.entries(stage), decoder_.scale(stage)));
      } else if (tensor.format.decoder == Decoder::signs) {
        searches_.emplace_back(NearestSigned(decoder_.entries(stage), tensor.format.vector_size));
      } else if (tensor.format.is_scalar()) {
        searches_.emplace_back(NearestScalars(tensor.format, decoder_.entries(stage)));
      } else {
        searches_.emplace_back(NearestEntry(decoder_.entries(stage), tensor.format.vector_size));
      }
    }
  }

  // Takes one sub-vector, whose codes of all stages go to `codes`.
  void add(std::span<const float> vector, std::uint32_t* codes) {
    residuals_.insert(residuals_.end(), vector.begin(), vector.end());
    targets_.push_back(codes);
    if (targets_.size() == kChunk) flush();
  }

  void flush() {
    codes_.resize(targets_.size());
    for (std::size_t stage = 0; stage < searches_.size(); ++stage) {
      std::visit([this](const auto& search) { search.find(residuals_, codes_); }, searches_[stage]);
      for (std::size_t i = 0; i < targets_.size(); ++i) {
        targets_[i][stage] = codes_[i];
        const auto numbers = decoder_.numbers(static_cast<int>(stage), codes_[i]);
        for (std::size_t d = 0; d < size_; ++d) residuals_[i * size_ + d] -= numbers[d];
      }
    }
    residuals_.clear();
    targets_.clear();
  }

 private:
  static constexpr std::size_t kChunk = 16384;
  std::size_t size_;
  UnitDecoder decoder_;
  std::vector<std::variant<NearestEntry, NearestPoint, NearestSigned, NearestScalars>>
      searches_;  // [stage]
  std::vector<float> residuals_;
  std::vector<std::uint32_t*> targets_;
  std::vector<std::uint32_t> codes_;
};

void require_codebooks(const Codebooks& codebooks, const UnitMap& map) {
  const VqFormat& format = codebooks.format;
  const auto stages = static_cast<std::size_t>(map.units() * format.num_codebooks);
  const auto stage_size = static_cast<std::size_t>(format.entries() * format.vector_size);
  if (codebooks.units != map.units() || codebooks.entries.size() != stages * stage_size ||
      (format.stage_scales && codebooks.stage_scales.size() != stages) ||
      !codebooks.projections.empty()) {
    throw Error(
        ErrorKind::bad_input,
        "encode: the codebooks do not fit tensor and format; train them on a tensor of this "
        "shape, and fold projections first");
  }
  for (const std::uint16_t bits : codebooks.entries) {
    const float value = element_to_float(codebooks.dtype, bits);
    if (!fits_entries(format, value)) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("encode: {} is among the entries, which must be {}", value,
                              entry_numbers(format)));
    }
  }
  if (!fits_stage_scales(format, codebooks.stage_scales)) {
    throw Error(ErrorKind::bad_input,
                "encode: the stages of a unit have scales that differ, where common_scale asks for "
                "one");
  }
}

// The codes of all elements; words for scales of tokens are left zeros.
QuantizedTensor encode_numbers(const FloatTensor& values, const Codebooks& codebooks) {
  const VqFormat& format = codebooks.format;
  const UnitMap map = unit_map(format, values.heads, values.rows, values.columns, "encode");
  require_codebooks(codebooks, map);

  QuantizedTensor result;
  result.format = format;
  result.dtype = codebooks.dtype;
  result.batch = values.batch;
  result.heads = values.heads;
  result.rows = values.rows;
  result.columns = values.columns;
  result.units = map.units();
  result.row_words = format.row_words(values.columns);
  result.codebooks = codebooks.entries;
  result.stage_scales = codebooks.stage_scales;

  const std::int64_t row_codes = values.columns / format.vector_size * format.num_codebooks;
  std::vector<std::uint32_t> codes(static_cast<std::size_t>(values.row_count() * row_codes));
  const auto size = static_cast<std::size_t>(format.vector_size);
  for (std::int64_t unit = 0; unit < result.units; ++unit) {
    UnitEncoder encoder(result, unit);
    for_each_sub_vector(
        map, map.extent(unit), values.batch, format.vector_size,
        [&](std::int64_t row, std::int64_t column) {
          const std::int64_t code =
              (row * values.columns + column) / format.vector_size * format.num_codebooks;
          encoder.add(values.row(row).subspan(static_cast<std::size_t>(column), size),
                      codes.data() + code);
        });
    encoder.flush();
  }

  pack_codes(codes, result);
  return result;
}

// The scale word for some numbers, as kv_append computes it: the largest magnitude becomes the
// largest number; with a zero, the least becomes 0 and the largest the largest number.
std::uint32_t scale_word(const VqFormat& format, DType dtype, std::span<const float> values) {
  if (!format.has_zeros()) {
    float most = 0;
    for (const float value : values) most = std::max(most, std::abs(value));
    return std::bit_cast<std::uint32_t>(most > 0 ? most / scalar_peak(format) : 1.0f);
  }
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const std::uint32_t zero = element_from_float(dtype, *low + 0.0f);  // which turns -0
  return zero << 16 | element_from_float(dtype, (*high - *low) / scalar_peak(format));
}

// Calls use(first element, elements apart, count) for the elements of each scale word, in the order
// of the words: of some channels of a row, or of a channel of some rows.
template <class Use>
void for_each_scale(const VqFormat& format, const FloatTensor& values, Use use) {
  const std::int64_t rows = std::max(format.group_tokens, 1);
  const std::int64_t columns = format.group_tokens > 0 ? 1 : format.scale_channels(values.columns);
  for (std::int64_t row = 0; row < values.row_count(); row += rows) {
    for (std::int64_t column = 0; column < values.columns; column += columns) {
      const auto first = static_cast<std::size_t>(row * values.columns + column);
      if (format.group_tokens > 0) {
        use(first, static_cast<std::size_t>(values.columns), rows);
      } else {
        use(first, std::size_t{1}, columns);
      }
    }
  }
}

// The numbers of a word, which are finite; Error(bad_input) that begins with `name` otherwise.
TokenScale finite_scale(const VqFormat& format, DType dtype, std::uint32_t word,
                        const std::string& name) {
  const TokenScale scale = token_scale(format, dtype, word);
  if (std::isfinite(scale.scale) && std::isfinite(scale.zero)) return scale;
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: the scale {} and the zero {} of a token are beyond {}; use bf16",
                          name, scale.scale, scale.zero, enum_name(dtype)));
}

// Encodes formats whose rows have scales after their codes.
QuantizedTensor encode_scaled(FloatTensor values, Codebooks codebooks) {
  const VqFormat format = std::exchange(codebooks.format, without_layout(codebooks.format));
  if (format.group_tokens > 0 && values.rows % format.group_tokens != 0) {
    throw Error(ErrorKind::bad_input,
                fmt::format("encode: {} tokens are no whole groups of {}, which group_tokens asks "
                            "for; give whole groups, the rest stays raw",
                            values.rows, format.group_tokens));
  }
  std::vector<std::uint32_t> words;
  std::vector<float> group;
  for_each_scale(format, values, [&](std::size_t first, std::size_t apart, std::int64_t count) {
    group.resize(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < group.size(); ++i) group[i] = values.data[first + i * apart];
    words.push_back(scale_word(format, codebooks.dtype, group));
    const TokenScale scale = finite_scale(format, codebooks.dtype, words.back(), "encode");
    for (std::size_t i = 0; i < group.size(); ++i) {
      values.data[first + i * apart] =
          scale.scale == 0 ? 0.0f : (group[i] - scale.zero) / scale.scale;
    }
  });
  QuantizedTensor result = encode_numbers(values, codebooks);
  const std::int64_t of_row = format.scale_words(values.columns);
  for (std::int64_t row = 0; row < values.row_count(); ++row) {
    std::copy_n(words.begin() + row * of_row, of_row,
                result.codes.begin() + (row + 1) * result.row_words - of_row);
  }
  repack(result, format.layout);
  return result;
}

}  // namespace

void require_scales(const FloatTensor& values, const VqFormat& format, DType dtype,
                    const std::string& name) {
  std::vector<float> group;
  for_each_scale(format, values, [&](std::size_t first, std::size_t apart, std::int64_t count) {
    group.resize(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < group.size(); ++i) group[i] = values.data[first + i * apart];
    finite_scale(format, dtype, scale_word(format, dtype, group), name);
  });
}

void require_supported(const VqFormat& format, const std::string& where) {
  for (const VqFormat& part : format.parts) require_supported(part, where);
  if (const std::optional<FormatFault> fault = format_fault(format)) {
    throw Error(ErrorKind::infeasible,
                fmt::format("{}: {}: {}", where, fault->field, fault->message));
  }
}

void fold_projections(Codebooks& codebooks) {
  if (codebooks.projections.empty()) return;
  if (codebooks.format.entry_type == EntryType::int8) {
    throw Error(ErrorKind::bad_input,
                "codebooks: projected entries are no integers; use entry_type element");
  }
  const auto size = static_cast<std::size_t>(codebooks.format.vector_size);
  const auto entries = static_cast<std::size_t>(codebooks.format.entries());
  const auto stages = static_cast<std::size_t>(codebooks.format.num_codebooks);
  std::vector<double> entry(size);
  for (std::size_t index = 0; index < codebooks.entries.size() / size; ++index) {
    const float* matrix = codebooks.projections.data() + index / entries % stages * size * size;
    std::uint16_t* bits = codebooks.entries.data() + index * size;
    for (std::size_t i = 0; i < size; ++i) entry[i] = element_to_float(codebooks.dtype, bits[i]);
    for (std::size_t i = 0; i < size; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < size; ++j) sum += double{matrix[i * size + j]} * entry[j];
      bits[i] = element_from_float(codebooks.dtype, static_cast<float>(sum));
      if (!std::isfinite(element_to_float(codebooks.dtype, bits[i]))) {
        throw Error(ErrorKind::bad_input,
                    "codebooks: a projected entry is too large for " +
                        std::string(enum_name(codebooks.dtype)) +
                        "; scale the projection down and put the factor into the stage scales");
      }
    }
  }
  codebooks.projections.clear();
}

QuantizedTensor encode(const FloatTensor& values, const Codebooks& codebooks) {
  require_supported(codebooks.format, "encode");
  require_one_format(codebooks.format, "encode");
  if (codebooks.format.scale_words(values.columns) > 0) return encode_scaled(values, codebooks);
  if (codebooks.format.group_inputs > 0) return encode_groups(values, codebooks);
  return encode_numbers(values, codebooks);
}

UnitDecoder::UnitDecoder(const QuantizedTensor& tensor, std::int64_t unit)
    : format_(tensor.format),
      scales_(static_cast<std::size_t>(format_.num_codebooks), 1.0f),
      point_(static_cast<std::size_t>(format_.vector_size)) {
  const std::size_t first_stage = static_cast<std::size_t>(unit) * scales_.size();
  const auto stage_size = static_cast<std::size_t>(format_.entries()) * point_.size();
  for (std::size_t stage = 0; stage < scales_.size(); ++stage) {
    if (format_.stage_scales) scales_[stage] = tensor.stage_scales[first_stage + stage];
    const float factor = format_.has_own_entries() ? scales_[stage] : 1.0f;
    for (std::size_t i = 0; i < stage_size; ++i) {
      const std::uint16_t bits = tensor.codebooks[(first_stage + stage) * stage_size + i];
      entries_.push_back(factor * element_to_float(tensor.dtype, bits));
    }
  }
}

std::span<const float> UnitDecoder::entries(int stage) const {
  const std::size_t size = entries_.size() / scales_.size();
  return std::span(entries_).subspan(static_cast<std::size_t>(stage) * size, size);
}

float UnitDecoder::scale(int stage) const { return scales_[static_cast<std::size_t>(stage)]; }

std::span<const float> UnitDecoder::numbers(int stage, std::uint32_t code) {
  const auto entry = entries(stage).subspan(format_.entry_of(code) * point_.size(), point_.size());
  if (format_.decoder == Decoder::table) return entry;
  if (format_.is_scalar()) {
    scalar_point(format_, entry, code, point_);
    return point_;
  }
  if (format_.decoder == Decoder::signs) {
    signed_point(entries(stage), code, point_);
    return point_;
  }
  lattice_point(entry, code, point_);
  for (float& value : point_) value *= scale(stage);
  return point_;
}

TokenScale token_scale(const VqFormat& format, DType dtype, std::uint32_t word) {
  if (!format.has_zeros()) return {std::bit_cast<float>(word), 0.0f};
  return {element_to_float(dtype, static_cast<std::uint16_t>(word & 0xffffu)),
          element_to_float(dtype, static_cast<std::uint16_t>(word >> 16))};
}

std::vector<TokenScale> token_scales(const QuantizedTensor& tensor) {
  QuantizedTensor plain = tensor;
  repack(plain, {});
  const std::int64_t of_row = tensor.format.scale_words(tensor.columns);
  std::vector<TokenScale> scales;
  for (std::int64_t row = 0; row < tensor.batch * tensor.heads * tensor.rows; ++row) {
    for (std::int64_t i = tensor.row_words - of_row; i < tensor.row_words; ++i) {
      const auto at = static_cast<std::size_t>(row * tensor.row_words + i);
      scales.push_back(token_scale(tensor.format, tensor.dtype, plain.codes[at]));
    }
  }
  return scales;
}

FloatTensor decode(const QuantizedTensor& tensor) {
  const VqFormat& format = tensor.format;
  FloatTensor result{tensor.batch, tensor.heads, tensor.rows, tensor.columns, {}};
  result.data.assign(static_cast<std::size_t>(result.row_count() * result.columns), 0.0f);
  for (std::size_t i = 0; i < format.parts.size(); ++i) {
    put_channels(decode(take_part(tensor, i)), format.parts[i].channels, result);
  }
  if (format.in_parts()) return result;
  const std::vector<std::uint32_t> codes = unpack_codes(tensor);
  const auto size = static_cast<std::size_t>(format.vector_size);
  const UnitMap map = unit_map(format, tensor.heads, tensor.rows, tensor.columns, "decode");
  for (std::int64_t unit = 0; unit < tensor.units; ++unit) {
    UnitDecoder decoder(tensor, unit);
    for_each_sub_vector(
        map, map.extent(unit), tensor.batch, format.vector_size,
        [&](std::int64_t row, std::int64_t column) {
          float* values = result.data.data() + row * tensor.columns + column;
          const std::uint32_t* code = codes.data() + (row * tensor.columns + column) /
                                                         format.vector_size * format.num_codebooks;
          for (int stage = 0; stage < format.num_codebooks; ++stage) {
            const std::span<const float> numbers = decoder.numbers(stage, code[stage]);
            for (std::size_t d = 0; d < size; ++d) values[d] += numbers[d];
          }
        });
  }
  if (format.scale_words(tensor.columns) > 0) {
    const std::vector<TokenScale> scales = token_scales(tensor);
    auto scale = scales.begin();
    for_each_scale(format, result, [&](std::size_t first, std::size_t apart, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i, first += apart) {
        result.data[first] = scale->zero + scale->scale * result.data[first];
      }
      ++scale;
    });
  }
  if (format.group_inputs > 0) apply_groups(result, tensor);
  return result;
}

FloatTensor reconstruct(const QuantizedTensor& tensor) {
  FloatTensor result = decode(tensor);
  untransform_keys(result, tensor.format, tensor.smooth);
  leave_basis(result, tensor);
  if (tensor.format.output_scales) {
    for (std::int64_t row = 0; row < result.row_count(); ++row) {
      const float scale = tensor.output_scales[static_cast<std::size_t>(row)];
      for (float& value : result.row(row)) value *= scale;
    }
  }
  return result;
}

ReconstructionError reconstruction_error(const FloatTensor& original,
                                         const FloatTensor& reconstructed) {
  double error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < original.data.size(); ++i) {
    const double value = original.data[i];
    const double difference = value - reconstructed.data[i];
    error += difference * difference;
    energy += value * value;
  }
  ReconstructionError result;
  result.mse = error / static_cast<double>(original.data.size());
  if (error > 0) result.relative = std::sqrt(error / energy);
  return result;
}

}  // namespace vqgen
