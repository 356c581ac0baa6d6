// The only judge of feasibility.
#pragma once

#include "core/gpu/gpu_spec.h"
#include "core/plan/plan.h"
#include "core/problem/check.h"

namespace vqgen {

// Decides if the generator can emit this plan for the validated problem and the GPU can run it.
Verdict check(const Plan& plan, const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
