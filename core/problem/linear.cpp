// Which experts and gates a product may have.
#include "core/problem/linear.h"

#include <fmt/format.h>

namespace vqgen {
namespace {

std::optional<FormatFault> experts_fault(const LinearShape& shape) {
  if (!shape.grouped()) {
    if (shape.total_rows == 0) return std::nullopt;
    return FormatFault{"total_rows", "goes with experts only; remove it, or set experts"};
  }
  if (shape.rows > kMostExpertRows) {
    return FormatFault{"m", fmt::format("an expert has up to {} rows, not {}; lower it",
                                        kMostExpertRows, shape.rows)};
  }
  if (shape.call_rows() < shape.rows) {
    return FormatFault{
        "total_rows",
        fmt::format("{} is less than the {} rows that one expert may have; lower rows",
                    shape.total_rows, shape.rows)};
  }
  if (shape.call_rows() > shape.experts * shape.rows) {
    return FormatFault{
        "total_rows",
        fmt::format("{} is more than {} rows for each of {} experts; use {} at most",
                    shape.total_rows, shape.rows, shape.experts, shape.experts * shape.rows)};
  }
  return std::nullopt;
}

// W has whole runs of gate rows and of up rows.
std::optional<FormatFault> gate_fault(const LinearShape& shape) {
  if (shape.gate == Gate::none) {
    if (shape.gate_rows == 1) return std::nullopt;
    return FormatFault{"gate_rows", "goes with gate only; remove it, or set gate to silu"};
  }
  if (shape.out_features % 2 != 0) {
    return FormatFault{"out_features",
                       fmt::format("{} are not as many gate rows as up rows; give an even number",
                                   shape.out_features)};
  }
  const std::int64_t half = shape.out_features / 2;
  if (half % shape.gate_rows == 0) return std::nullopt;
  return FormatFault{
      "gate_rows", fmt::format("{} does not divide the {} gate rows; use 1, {} or another divisor",
                               shape.gate_rows, half, half)};
}

}  // namespace

std::optional<FormatFault> linear_fault(const LinearShape& shape) {
  const auto fault = experts_fault(shape);
  return fault ? fault : gate_fault(shape);
}

}  // namespace vqgen
