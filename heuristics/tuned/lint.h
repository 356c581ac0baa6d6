// What is doubtful in a tuned table, though it can be read.
#pragma once

#include <string>
#include <vector>

#include "core/format/element.h"
#include "heuristics/tuned/table.h"

namespace vqgen {

inline constexpr double kMostNoise = 0.10;  // relative; beyond, a measurement decides little

struct LintFinding {
  std::string where;  // FILE:LINE
  std::string what;
};

// Findings of a table that was read from `name`, in its order. A file that is named as a shipped
// GPU profile is must hold rows of that device class alone. `tolerance` is what rel_err is allowed
// for an element type.
std::vector<LintFinding> lint(const TunedTable& table, const std::string& name,
                              double (*tolerance)(DType));

}  // namespace vqgen
