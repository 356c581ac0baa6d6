// The main kernel of a call: others prepare its input or merge its results.
#pragma once

#include "core/plan/plan.h"

namespace vqgen {

// Number of the main kernel in the call, and so in KernelSource::entries and Artifact::kernels: the
// first that looks up entries, or 0 if none does. Requires is_plan_of().
std::size_t main_kernel(const Plan& plan, const Problem& problem);

}  // namespace vqgen
