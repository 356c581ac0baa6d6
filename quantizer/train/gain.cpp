#include "quantizer/train/gain.h"

#include "quantizer/train/train.h"

namespace vqgen {
namespace {

// Of the unit's sub-vectors; 1 where codes stand for zeros alone.
double gain(const UnitMap& map, std::int64_t unit, const FloatTensor& vectors,
            const FloatTensor& decoded, int vector_size) {
  double own = 0;
  double shared = 0;
  const auto size = static_cast<std::size_t>(vector_size);
  for_each_sub_vector(map, map.extent(unit), vectors.batch, vector_size,
                      [&](std::int64_t row, std::int64_t column) {
                        const auto at = static_cast<std::size_t>(column);
                        const auto vector = vectors.row(row).subspan(at, size);
                        const auto held = decoded.row(row).subspan(at, size);
                        for (std::size_t d = 0; d < size; ++d) {
                          own += double{vector[d]} * vector[d];
                          shared += double{vector[d]} * held[d];
                        }
                      });
  return shared > 0 ? own / shared : 1.0;
}

}  // namespace

void apply_gain(Codebooks& codebooks, const FloatTensor& calibration, const std::string& name) {
  const VqFormat& format = codebooks.format;
  const FloatTensor decoded = decode(encode(calibration, codebooks));
  const UnitMap map =
      unit_map(format, calibration.heads, calibration.rows, calibration.columns, name);
  const auto units = static_cast<std::size_t>(codebooks.units);
  const std::size_t of_unit = codebooks.entries.size() / units;
  const std::size_t scales = codebooks.stage_scales.size() / units;
  for (std::size_t unit = 0; unit < units; ++unit) {
    const auto g = static_cast<float>(
        gain(map, static_cast<std::int64_t>(unit), calibration, decoded, format.vector_size));
    if (format.stage_scales) {
      for (std::size_t i = 0; i < scales; ++i) codebooks.stage_scales[unit * scales + i] *= g;
      continue;
    }
    for (std::size_t i = unit * of_unit; i < (unit + 1) * of_unit; ++i) {
      std::uint16_t& entry = codebooks.entries[i];
      entry = entry_bits(g * element_to_float(codebooks.dtype, entry), codebooks.dtype, name);
    }
  }
}

}  // namespace vqgen
