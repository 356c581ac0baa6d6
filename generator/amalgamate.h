// Templates to one text.
#pragma once

#include <string>
#include <vector>

#include "core/plan/kernel_source.h"

namespace vqgen {

// The templates `paths` ("vq/kernels/linear_lanes/kernel.cuh") with everything they include put in
// once, in order, with #line marks. <vq/machine.cuh> and <vq/annotations.h> come from the machine's
// folder. Includes outside vq/ stay, which only the host machine has.
std::string amalgamate(Machine machine, const std::vector<std::string>& paths);

}  // namespace vqgen
