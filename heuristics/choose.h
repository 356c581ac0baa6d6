// Problem and GPU to Plan, purely.
#pragma once

#include "core/check.h"

namespace vqgen {

// The heuristics' plan, which check() may still refuse: a user's own fields may go over it first.
// Error(infeasible) with check()'s reason where no kernel does the problem, whatever the plan.
Plan propose(const Problem& problem, const GpuSpec& gpu);

// The same, accepted by check(), or Error(infeasible) with its reason.
Plan choose(const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
