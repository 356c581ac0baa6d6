// How decoded entries get to the arithmetic of a plan, as text: the mapping of one fragment.
#pragma once

#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "core/problem/problem.h"

namespace vqgen {

std::vector<std::string> fusion_lines(const Plan& plan, const Problem& problem);

}  // namespace vqgen
