// Plan to text.
#pragma once

#include <string>
#include <vector>

#include "core/gpu/gpu_spec.h"
#include "core/plan/kernel_source.h"
#include "core/plan/plan.h"
#include "core/problem/problem.h"

namespace vqgen {

// The kernels of a plan that check() accepts, as one self-contained text: a head that says problem,
// plan and `reasons` (a line each), the templates, the plan as a struct, the entries. Pure: the
// same arguments give the same bytes.
KernelSource generate(const Problem& problem, const Plan& plan, const GpuSpec& gpu, Machine machine,
                      const std::vector<std::string>& reasons);

}  // namespace vqgen
