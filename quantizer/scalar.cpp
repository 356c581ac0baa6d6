#include "quantizer/scalar.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "quantizer/units.h"

namespace vqgen {
namespace {

int bits_of(const VqFormat& format) { return format.index_bits / format.vector_size; }

// Four bits of exponent with a bias of 7, three of mantissa.
float e4m3_number(std::uint32_t byte) {
  const auto exponent = static_cast<int>(byte >> 3 & 0xfu);
  const auto mantissa = static_cast<float>(byte & 7u);
  const float magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (byte & 0x80u) != 0 ? -magnitude : magnitude;
}

// The nearest, of two the even one.
std::uint32_t e4m3_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 24 & 0x80u;
  const float magnitude = std::abs(value);
  if (magnitude < 0x1p-6f) {
    return sign | static_cast<std::uint32_t>(std::nearbyint(magnitude * 512));
  }
  const std::uint32_t whole = bits & 0x7fffffffu;
  return sign | (((whole + 0x7ffffu + (whole >> 20 & 1u)) >> 20) - (120u << 3));
}

float clamped(float value, float least, float most) {
  return value > most ? most : value > least ? value : least;
}

}  // namespace

void scalar_point(const VqFormat& format, std::span<const float> scales, std::uint32_t code,
                  std::span<float> point) {
  const int bits = bits_of(format);
  const std::uint32_t half = format.has_zeros() ? 0 : 1u << (bits - 1);
  const std::uint32_t mask = (1u << bits) - 1;
  for (std::size_t i = 0; i < point.size(); ++i) {
    const std::uint32_t own = code >> (bits * static_cast<int>(i)) & mask;
    const float number =
        format.decoder == Decoder::e4m3
            ? e4m3_number(own)
            : static_cast<float>(static_cast<int>(own ^ half) - static_cast<int>(half));
    point[i] = number * scales[i];
  }
}

void NearestScalars::find(std::span<const float> vectors, std::span<std::uint32_t> codes) const {
  const float peak = scalar_peak(format_);
  const int bits = bits_of(format_);
  for (std::size_t at = 0; at < codes.size(); ++at) {
    std::uint32_t code = 0;
    for (std::size_t i = 0; i < scales_.size(); ++i) {
      const float value = clamped(vectors[at * scales_.size() + i] / scales_[i],
                                  format_.has_zeros() ? 0.0f : -peak, peak);
      const std::uint32_t number = format_.decoder == Decoder::e4m3
                                       ? e4m3_bits(value)
                                       : static_cast<std::uint32_t>(static_cast<int>(
                                             value < 0 ? value - 0.5f : value + 0.5f)) &
                                             ((1u << bits) - 1);
      code |= number << (bits * static_cast<int>(i));
    }
    codes[at] = code;
  }
}

std::uint16_t scalar_scale(const VqFormat& format, DType dtype, float peak) {
  if (peak == 0) return element_from_float(dtype, 1.0f);
  const float scale = peak / scalar_peak(format);
  std::uint16_t bits = element_from_float(dtype, scale);
  if (element_to_float(dtype, bits) < scale) ++bits;
  return bits;
}

std::int64_t clamped_rows(const FloatTensor& values, const Codebooks& scales) {
  const VqFormat& format = scales.format;
  if (format.scale_words(values.columns) > 0) return 0;
  const float half_step = format.decoder == Decoder::e4m3 ? 16.0f : 0.5f;  // at the largest number
  const float most = scalar_peak(format) + half_step;
  const UnitMap map = unit_map(format, values.heads, values.rows, values.columns, "clamped_rows");
  const auto size = static_cast<std::size_t>(format.vector_size);
  std::vector<bool> clamps(static_cast<std::size_t>(values.row_count()), false);
  for (std::int64_t unit = 0; unit < map.units(); ++unit) {
    const auto own = std::span(scales.entries).subspan(static_cast<std::size_t>(unit) * size, size);
    for_each_sub_vector(
        map, map.extent(unit), values.batch, format.vector_size,
        [&](std::int64_t row, std::int64_t column) {
          const auto vector = values.row(row).subspan(static_cast<std::size_t>(column), size);
          for (std::size_t d = 0; d < size; ++d) {
            if (std::abs(vector[d] / element_to_float(scales.dtype, own[d])) <= most) continue;
            clamps[static_cast<std::size_t>(row)] = true;
          }
        });
  }
  return std::count(clamps.begin(), clamps.end(), true);
}

}  // namespace vqgen
