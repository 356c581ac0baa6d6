// The shapes that all rows of an ablation share, and how far one is from another.
#pragma once

#include <vector>

#include "heuristics/check.h"

namespace vqgen {

// As AblationSpace::shapes() says.
std::vector<Plan> ablation_shapes(const Problem& problem, const GpuSpec& gpu);

// How often a number has to be doubled or halved to get from one plan to the other, over all fields
// but placements, which count once if they differ, as names do. Plans are of one op.
double distance(const Plan& a, const Plan& b);

}  // namespace vqgen
