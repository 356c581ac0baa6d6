#include "runtime/verify/code_points.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/verify/row_decoder.h"

namespace vqgen {
namespace {

// The square of the distance of x to `scale` times a point.
double squares(std::span<const double> x, std::span<const double> point, double scale) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = x[i] - scale * point[i];
    sum += difference * difference;
  }
  return sum;
}

// Lowers `least` to the square of the distance to the nearest of the lattice's points with one
// entry and shift, where that is nearer: of those with the signs of what is left without the shift,
// and with each one of the first seven turned besides; the eighth follows from the sum. None is
// nearer than one with all signs free.
void look_at_lattice(std::span<const double> x, std::span<const double> entry, double scale,
                     std::uint32_t down, double& least) {
  constexpr double kRounding = 1 - 1e-9;
  double free = 0;
  std::uint32_t signs = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    const double left = x[i] - scale * (down == 0 ? 0.25 : -0.25);
    const double difference = std::abs(left) - scale * entry[i];
    free += difference * difference;
    if (i < 7 && left < 0) signs |= 1u << i;
  }
  if (free * kRounding > least) return;
  const std::uint32_t code = signs << 8 | down << 15;
  least = std::min(least, squares(x, e8p_point(entry, code), scale));
  for (std::uint32_t i = 0; i < 7; ++i) {
    least = std::min(least, squares(x, e8p_point(entry, code ^ 1u << (8 + i)), scale));
  }
}

}  // namespace

CodePoints::CodePoints(const QuantizedTensor& tensor) : tensor_(tensor) {
  entries_.reserve(tensor.codebooks.size());
  for (const std::uint16_t bits : tensor.codebooks) {
    entries_.push_back(element_value(tensor.dtype, bits));
  }
}

double CodePoints::scale_of(std::int64_t book) const {
  return tensor_.format.stage_scales
             ? static_cast<double>(tensor_.stage_scales[static_cast<std::size_t>(book)])
             : 1;
}

std::span<const double> CodePoints::entry(std::int64_t book, std::int64_t number) const {
  const VqFormat& f = tensor_.format;
  return {entries_.data() + (book * f.entries() + number) * f.vector_size,
          static_cast<std::size_t>(f.vector_size)};
}

std::vector<double> CodePoints::point(std::int64_t book, std::uint32_t code) const {
  const std::span<const double> stored = entry(book, tensor_.format.entry_of(code));
  std::vector<double> point(stored.begin(), stored.end());
  if (tensor_.format.decoder == Decoder::e8p) {
    const auto of_lattice = e8p_point(stored, code);
    point.assign(of_lattice.begin(), of_lattice.end());
  }
  for (double& each : point) each *= scale_of(book);
  return point;
}

double CodePoints::least_distance(std::int64_t book, std::span<const double> x) const {
  const double scale = scale_of(book);
  double least = std::numeric_limits<double>::infinity();  // its square
  for (int number = 0; number < tensor_.format.entries(); ++number) {
    const std::span<const double> stored = entry(book, number);
    if (tensor_.format.decoder == Decoder::table) {
      least = std::min(least, squares(x, stored, scale));
    } else {
      for (const std::uint32_t down : {0u, 1u}) look_at_lattice(x, stored, scale, down, least);
    }
  }
  return std::sqrt(least);
}

}  // namespace vqgen
