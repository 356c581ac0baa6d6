// Durations as people write them: budgets and limits of a tuning.
#pragma once

#include <string>

namespace vqgen {

// "90", "90s", "1.5m", "2h": seconds, above 0 and at most a year. Error(bad_input) that names
// `what`.
double read_seconds(const std::string& text, const std::string& what);

}  // namespace vqgen
