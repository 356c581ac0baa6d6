#include "runtime/verify/hard_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

namespace vqgen {
namespace {

constexpr std::int64_t kChannelsAnOutlier = 64;
constexpr double kOutlierEntries = 1.0 / 16;
constexpr double kOutlierUnits = 1.0 / 8;
constexpr int kSmallestStage = 4;  // entries of later stages keep 2^-4, far above f16's subnormals

std::vector<float> factors(std::int64_t count, Random& random) {
  std::vector<float> result(static_cast<std::size_t>(count));
  for (float& factor : result) factor = static_cast<float>(random.uniform(0.5, 2));
  return result;
}

double stage_share(int stage) { return std::ldexp(1, -std::min(stage, kSmallestStage)); }

// An integer of about kInt8Unit where the number is about 1; outliers reach the ends, -127 and 127.
constexpr double kInt8Unit = 16;
double int8_entry(double value) { return std::clamp(std::round(kInt8Unit * value), -127.0, 127.0); }

// Neither the lattice nor integers have a say in their magnitude: their stage scales carry it,
// where the format has them.
std::vector<float> carrying_scales(const QuantizedTensor& t, double magnitude, Random& random) {
  const double unit = t.format.entry_type == EntryType::int8 ? kInt8Unit : 1;
  std::vector<float> scales = factors(t.units * t.format.residuals, random);
  int book = 0;
  for (float& scale : scales) {
    scale *= static_cast<float>(magnitude * stage_share(book++ % t.format.residuals) / unit);
  }
  return scales;
}

// The table of the lattice, in an order of its own for each unit and stage.
std::vector<std::uint16_t> make_lattice(const QuantizedTensor& t, Random& random) {
  const std::vector<float> table = e8p_table();
  std::vector<std::int64_t> order(kE8pEntries);
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::uint16_t> result;
  for (std::int64_t book = 0; book < t.units * t.format.residuals; ++book) {
    for (std::int64_t i = kE8pEntries - 1; i > 0; --i) {
      std::swap(order[static_cast<std::size_t>(i)],
                order[static_cast<std::size_t>(random.below(i + 1))]);
    }
    for (const std::int64_t entry : order) {
      for (std::int64_t i = 0; i < kE8pVectorSize; ++i) {
        const auto at = static_cast<std::size_t>(entry * kE8pVectorSize + i);
        result.push_back(element_from_float(t.dtype, table[at]));
      }
    }
  }
  return result;
}

std::vector<std::uint16_t> make_codebooks(const QuantizedTensor& t, double magnitude,
                                          Random& random) {
  const VqFormat& f = t.format;
  std::vector<std::uint16_t> result;
  result.reserve(static_cast<std::size_t>(t.units * f.residuals * f.entries() * f.vector_size));
  for (std::int64_t unit = 0; unit < t.units; ++unit) {
    const std::int64_t column = random.chance(kOutlierUnits) ? random.below(f.vector_size) : -1;
    for (int stage = 0; stage < f.residuals; ++stage) {
      const double stage_magnitude = magnitude * stage_share(stage);
      for (int entry = 0; entry < f.entries(); ++entry) {
        const std::int64_t element =
            random.chance(kOutlierEntries) ? random.below(f.vector_size) : -1;
        for (int j = 0; j < f.vector_size; ++j) {
          const bool outlier = stage == 0 && (j == element || j == column);
          double value = random.normal() * stage_magnitude * (outlier ? kOutlier : 1);
          if (f.entry_type == EntryType::int8) value = int8_entry(value / stage_magnitude);
          result.push_back(element_from_float(t.dtype, static_cast<float>(value)));
        }
      }
    }
  }
  return result;
}

}  // namespace

std::vector<double> channel_magnitudes(std::int64_t channels, Random& random) {
  std::vector<double> magnitudes(static_cast<std::size_t>(channels), 1.0);
  const std::int64_t outliers = std::max<std::int64_t>(1, channels / kChannelsAnOutlier);
  for (std::int64_t i = 0; i < outliers; ++i) {
    magnitudes[static_cast<std::size_t>(random.below(channels))] = kOutlier;
  }
  return magnitudes;
}

std::vector<std::uint16_t> outlier_rows(DType dtype, std::int64_t rows, std::int64_t channels,
                                        double zero_rows, Random& random) {
  const std::vector<double> magnitudes = channel_magnitudes(channels, random);
  std::vector<std::uint16_t> elements;
  elements.reserve(static_cast<std::size_t>(rows * channels));
  for (std::int64_t row = 0; row < rows; ++row) {
    const double gain = zero_rows > 0 && random.chance(zero_rows) ? 0 : 1;
    for (const double magnitude : magnitudes) {
      const double value = random.normal() * magnitude * gain;
      elements.push_back(element_from_float(dtype, static_cast<float>(value)));
    }
  }
  return elements;
}

QuantizedTensor make_hard_tensor(const VqFormat& format, DType dtype, const TensorShape& shape,
                                 double magnitude, Random& random) {
  QuantizedTensor t;
  t.format = format;
  t.dtype = dtype;
  t.batch = shape.batch;
  t.heads = shape.heads;
  t.rows = shape.rows;
  t.columns = shape.columns;
  t.units = shape.units;
  const std::int64_t row_codes = t.columns / format.vector_size * format.residuals;
  t.row_words = (row_codes * format.index_bits + 31) / 32;
  const bool lattice = format.decoder == Decoder::e8p;
  t.codebooks = lattice ? make_lattice(t, random) : make_codebooks(t, magnitude, random);
  if (format.stage_scales) {
    const bool carried = lattice || format.entry_type == EntryType::int8;
    t.stage_scales = carried ? carrying_scales(t, magnitude, random)
                             : factors(t.units * format.residuals, random);
  }
  if (format.output_scales) t.output_scales = factors(t.rows, random);
  if (format.smooth) t.smooth = factors(t.heads * t.columns, random);
  return t;
}

}  // namespace vqgen
