// Problem and GPU to Plan, purely.
#pragma once

#include "core/check.h"

namespace vqgen {

// A plan that check() accepts. Error(infeasible) with check()'s reason where the problem has none.
Plan choose(const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
