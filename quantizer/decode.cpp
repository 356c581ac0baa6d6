#include "quantizer/decode.h"

#include <cmath>

#include "quantizer/pack.h"
#include "quantizer/transform.h"
#include "quantizer/units.h"

namespace vqgen {

std::vector<std::uint32_t> unpack_codes(const QuantizedTensor& tensor) {
  const VqFormat& format = tensor.format;
  const auto row_codes =
      static_cast<std::size_t>(tensor.columns / format.vector_size * format.residuals);
  const auto row_words = static_cast<std::size_t>(tensor.row_words);
  const auto rows = static_cast<std::size_t>(tensor.batch * tensor.heads * tensor.rows);
  std::vector<std::uint32_t> codes(rows * row_codes);
  for (std::size_t row = 0; row < rows; ++row) {
    unpack_row(std::span(tensor.codes).subspan(row * row_words, row_words), format.index_bits,
               std::span(codes).subspan(row * row_codes, row_codes));
  }
  return codes;
}

std::vector<float> scaled_entries(const QuantizedTensor& tensor, std::int64_t unit) {
  const VqFormat& format = tensor.format;
  const auto stages = static_cast<std::size_t>(format.residuals);
  const auto stage_size = static_cast<std::size_t>(format.entries() * format.vector_size);
  const std::size_t first_stage = static_cast<std::size_t>(unit) * stages;
  std::vector<float> numbers(stages * stage_size);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const float scale =
        format.stage_scales ? tensor.stage_scales[first_stage + i / stage_size] : 1.0f;
    numbers[i] =
        scale * element_to_float(tensor.dtype, tensor.codebooks[first_stage * stage_size + i]);
  }
  return numbers;
}

FloatTensor decode(const QuantizedTensor& tensor) {
  const VqFormat& format = tensor.format;
  FloatTensor result{tensor.batch, tensor.heads, tensor.rows, tensor.columns, {}};
  result.data.assign(static_cast<std::size_t>(result.row_count() * result.columns), 0.0f);
  const std::vector<std::uint32_t> codes = unpack_codes(tensor);
  const std::int64_t row_codes = tensor.columns / format.vector_size * format.residuals;
  const auto size = static_cast<std::size_t>(format.vector_size);
  const auto stage_size = static_cast<std::size_t>(format.entries()) * size;
  const UnitMap map = unit_map(format, tensor.heads, tensor.rows, tensor.columns, "decode");
  for (std::int64_t unit = 0; unit < tensor.units; ++unit) {
    const std::vector<float> numbers = scaled_entries(tensor, unit);
    for_each_sub_vector(
        map, map.extent(unit), tensor.batch, format.vector_size,
        [&](std::int64_t row, std::int64_t column) {
          float* values = result.data.data() + row * tensor.columns + column;
          const std::uint32_t* code =
              codes.data() + row * row_codes + column / format.vector_size * format.residuals;
          for (int stage = 0; stage < format.residuals; ++stage) {
            const float* entry =
                numbers.data() + static_cast<std::size_t>(stage) * stage_size + code[stage] * size;
            for (std::size_t d = 0; d < size; ++d) values[d] += entry[d];
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
