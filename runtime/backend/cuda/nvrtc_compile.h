// KernelSource to cubin.
#pragma once

#include <string>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/backend/cuda/nvrtc_process.h"

namespace vqgen {

// The options as NVRTC of that version gets them.
std::vector<std::string> nvrtc_options(int major, int minor, const KernelSource& source);

// Compiles every entry of the text. Error(device) where NVRTC does not know the architecture or
// rejects the text, or its process ends or hangs; text and log are then kept in files that the
// message names. The process compiles nothing else after this.
Artifact nvrtc_compile(NvrtcProcess& process, const KernelSource& source);

}  // namespace vqgen
