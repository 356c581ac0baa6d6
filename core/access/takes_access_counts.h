// Tells whether a profile of access_counts says anything of a problem.
#pragma once

#include <string>

#include "core/problem/problem.h"

namespace vqgen {

// Why no profile says where entries of the problem's codebooks should stand, with the remedy; empty
// where one does.
std::string why_no_access_counts(const Problem& problem);

}  // namespace vqgen
