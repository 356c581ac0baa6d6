// Which kernel of a call is the plan's own: others prepare its input or merge its results.
#pragma once

#include "core/plan/plan.h"

namespace vqgen {

// Its number in the call, and so in KernelSource::entries and Artifact::kernels: of the first that
// looks entries up; 0 where none does. Requires is_plan_of().
std::size_t main_kernel(const Plan& plan, const Problem& problem);

}  // namespace vqgen
