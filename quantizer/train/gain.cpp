#include "quantizer/train/gain.h"

#include "core/error.h"
#include "quantizer/basis.h"
#include "quantizer/train/train.h"

namespace vqgen {
namespace {

// The gain of one unit's sub-vectors; 1 where codes stand for zeros alone.
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

std::vector<float> gains_of(const Codebooks& codebooks, const FloatTensor& calibration,
                            const std::string& name) {
  QuantizedTensor codes = encode(calibration, codebooks);
  const FloatTensor decoded = decode(codes);
  const UnitMap map =
      unit_map(codebooks.format, calibration.heads, calibration.rows, calibration.columns, name);
  std::vector<float> gains;
  for (std::int64_t unit = 0; unit < codebooks.units; ++unit) {
    gains.push_back(
        static_cast<float>(gain(map, unit, calibration, decoded, codebooks.format.vector_size)));
  }
  codes.gain = gains;
  const std::string fault = gain_fault(codes);
  if (!fault.empty()) throw Error(ErrorKind::bad_input, name + ": gain: " + fault);
  return gains;
}

}  // namespace vqgen
