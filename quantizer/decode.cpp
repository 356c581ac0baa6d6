#include "quantizer/decode.h"

#include <cmath>

#include "quantizer/nearest_point.h"
#include "quantizer/pack.h"
#include "quantizer/transform.h"
#include "quantizer/units.h"

namespace vqgen {

UnitDecoder::UnitDecoder(const QuantizedTensor& tensor, std::int64_t unit)
    : format_(tensor.format),
      scales_(static_cast<std::size_t>(format_.residuals), 1.0f),
      point_(static_cast<std::size_t>(format_.vector_size)) {
  const std::size_t first_stage = static_cast<std::size_t>(unit) * scales_.size();
  const auto stage_size = static_cast<std::size_t>(format_.entries()) * point_.size();
  for (std::size_t stage = 0; stage < scales_.size(); ++stage) {
    if (format_.stage_scales) scales_[stage] = tensor.stage_scales[first_stage + stage];
    const float factor = format_.decoder == Decoder::table ? scales_[stage] : 1.0f;
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
  lattice_point(entry, code, point_);
  for (float& value : point_) value *= scale(stage);
  return point_;
}

FloatTensor decode(const QuantizedTensor& tensor) {
  const VqFormat& format = tensor.format;
  FloatTensor result{tensor.batch, tensor.heads, tensor.rows, tensor.columns, {}};
  result.data.assign(static_cast<std::size_t>(result.row_count() * result.columns), 0.0f);
  const std::vector<std::uint32_t> codes = unpack_codes(tensor);
  const std::int64_t row_codes = tensor.columns / format.vector_size * format.residuals;
  const auto size = static_cast<std::size_t>(format.vector_size);
  const UnitMap map = unit_map(format, tensor.heads, tensor.rows, tensor.columns, "decode");
  for (std::int64_t unit = 0; unit < tensor.units; ++unit) {
    UnitDecoder decoder(tensor, unit);
    for_each_sub_vector(
        map, map.extent(unit), tensor.batch, format.vector_size,
        [&](std::int64_t row, std::int64_t column) {
          float* values = result.data.data() + row * tensor.columns + column;
          const std::uint32_t* code =
              codes.data() + row * row_codes + column / format.vector_size * format.residuals;
          for (int stage = 0; stage < format.residuals; ++stage) {
            const std::span<const float> numbers = decoder.numbers(stage, code[stage]);
            for (std::size_t d = 0; d < size; ++d) values[d] += numbers[d];
          }
        });
  }
  return result;
}

FloatTensor reconstruct(const QuantizedTensor& tensor) {
  FloatTensor result = decode(tensor);
  untransform_keys(result, tensor.format, tensor.smooth);
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
