// The templates as text inside the binary.
#pragma once

#include "core/files/embedded.h"

namespace vqgen {

// templates/: "vq/kernels/linear_lanes/kernel.cuh", "machine/cuda/vq/machine.cuh", ...
std::span<const EmbeddedFile> embedded_templates();

}  // namespace vqgen
