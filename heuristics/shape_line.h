// A problem in one line for people.
#pragma once

#include <string>

#include "core/problem/problem.h"

namespace vqgen {

// "gemv in f16: 1 rows of x by a matrix of 4096 outputs and 4096 inputs".
std::string shape_line(const Problem& problem);
// Its part that names the epilogue of a gemv or gemm, from a comma on; empty without one.
std::string epilogue_text(const LinearShape& shape);

}  // namespace vqgen
