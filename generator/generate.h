// Plan to text.
#pragma once

#include <string>
#include <vector>

#include "core/files/embedded.h"
#include "core/gpu/gpu_spec.h"
#include "core/plan/kernel_source.h"
#include "core/plan/plan.h"
#include "core/problem/problem.h"

namespace vqgen {

// templates/ inside the binary: "vq/kernels/linear_simt/kernel.cuh", ...
std::span<const EmbeddedFile> embedded_templates();

// The kernels of a plan that check() accepts, as one self-contained text: a head that says problem,
// plan and `reasons` (a line each), the templates, the plan as a struct, the entries. Pure: the
// same arguments give the same bytes.
KernelSource generate(const Problem& problem, const Plan& plan, const GpuSpec& gpu, Machine machine,
                      const std::vector<std::string>& reasons);

// A template ("vq/training/training.cuh") with all that it includes, as device code for a machine:
// of kernels that no problem and plan make.
std::string template_text(const std::string& path, Machine machine);

}  // namespace vqgen
