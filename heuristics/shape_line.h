// A problem in one line for people.
#pragma once

#include <string>

#include "core/problem/problem.h"

namespace vqgen {

// "gemv in f16: 1 rows of x by a matrix of 4096 outputs and 4096 inputs".
std::string shape_line(const Problem& problem);

}  // namespace vqgen
