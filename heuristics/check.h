// The only judge of feasibility.
#pragma once

#include "core/check.h"
#include "core/gpu_spec.h"
#include "core/plan.h"

namespace vqgen {

// Whether the generator can emit this plan for the (validated) problem and the GPU can run it.
Verdict check(const Plan& plan, const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
