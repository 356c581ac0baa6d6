// Tells whether a profile of access_counts says anything of a problem.
#pragma once

#include <string>

#include "core/problem/problem.h"

namespace vqgen {

// Why no access counts can place entries of the problem's codebooks, with the remedy; "" if they
// can.
std::string why_no_access_counts(const Problem& problem);

}  // namespace vqgen
