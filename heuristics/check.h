// The only judge of feasibility.
#pragma once

#include <string>

#include "core/gpu_spec.h"
#include "core/plan.h"

namespace vqgen {

struct Verdict {
  bool ok = true;
  std::string reason;  // why not, with the figure and the remedy; empty where ok
};

// Whether vqgen has a kernel for this problem at all, whatever the plan.
Verdict check(const Problem& problem);

// Whether the generator can emit this plan for the (validated) problem and the GPU can run it.
Verdict check(const Plan& plan, const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
