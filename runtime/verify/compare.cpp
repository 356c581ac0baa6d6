#include "runtime/verify/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "core/error.h"

namespace vqgen {
namespace {

constexpr double kLocalTolerances = 16;
constexpr double kLseTolerances = 2;

// Compares, but leaves `ok` unset. `floor` is added to |reference| in max_local_err; it defaults to
// the root mean square of the finite reference. Errors of at most `least` are none.
Comparison measure(std::span<const double> reference, std::span<const float> actual,
                   std::optional<double> floor = {}, double least = 0) {
  if (reference.size() != actual.size()) {
    throw Error(ErrorKind::bad_input, fmt::format("compare: {} results against a reference of {}",
                                                  actual.size(), reference.size()));
  }
  Comparison c;
  double squares = 0, error_squares = 0;
  std::size_t finite = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double ref = reference[i];
    const double out = static_cast<double>(actual[i]);
    if (std::isfinite(ref) && std::isfinite(out)) {
      squares += ref * ref;
      if (std::abs(out - ref) > least) error_squares += (out - ref) * (out - ref);
      ++finite;
    } else if (ref != out) {  // true for NaN on either side
      if (c.nonfinite_mismatches++ == 0) c.worst = static_cast<std::int64_t>(i);
    }
  }
  if (c.nonfinite_mismatches > 0) {
    c.rel_err = c.max_abs_err = c.max_local_err = std::numeric_limits<double>::infinity();
    return c;
  }
  c.rel_err = squares > 0 ? std::sqrt(error_squares / squares) : std::sqrt(error_squares);
  const double rms = finite > 0 ? std::sqrt(squares / static_cast<double>(finite)) : 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double error = std::abs(static_cast<double>(actual[i]) - reference[i]);
    if (!(error > least)) continue;  // equal infinities included
    c.max_abs_err = std::max(c.max_abs_err, error);
    const double scale = std::abs(reference[i]) + floor.value_or(rms);
    const double local = scale > 0 ? error / scale : error;
    if (local > c.max_local_err) {
      c.max_local_err = local;
      c.worst = static_cast<std::int64_t>(i);
    }
  }
  return c;
}

}  // namespace

double tolerance(DType dtype) { return dtype == DType::f16 ? 1e-3 : 8e-3; }

Comparison compare(std::span<const double> reference, std::span<const float> actual,
                   double rel_tolerance, double least) {
  Comparison c = measure(reference, actual, {}, least);
  c.ok = c.nonfinite_mismatches == 0 && c.rel_err <= rel_tolerance &&
         c.max_local_err <= kLocalTolerances * rel_tolerance;
  return c;
}

Comparison compare(std::span<const double> reference, std::span<const std::uint16_t> actual,
                   DType dtype, double tolerances) {
  std::vector<float> values;
  values.reserve(actual.size());
  for (const std::uint16_t bits : actual) values.push_back(element_to_float(dtype, bits));
  const double least = dtype == DType::f16 ? 0x1p-24 : 0x1p-133;  // positive number
  return compare(reference, values, tolerances * tolerance(dtype), least);
}

Comparison compare_lse(std::span<const double> reference, std::span<const float> actual,
                       DType dtype, double tolerances) {
  Comparison c = measure(reference, actual, 1.0);
  c.ok = c.nonfinite_mismatches == 0 &&
         c.max_local_err <= tolerances * kLseTolerances * tolerance(dtype);
  return c;
}

}  // namespace vqgen
