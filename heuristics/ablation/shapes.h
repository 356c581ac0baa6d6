// The shapes that all rows of an ablation share.
#pragma once

#include <vector>

#include "heuristics/check.h"

namespace vqgen {

// As AblationSpace::shapes() says.
std::vector<Plan> ablation_shapes(const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
