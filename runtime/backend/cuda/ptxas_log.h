// What ptxas -v says of each kernel. The cubin's own headers do not tell it (CUDA 13 leaves the
// register field 0 for sm_90a).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/backend/backend.h"

namespace vqgen {

// The resources of entry `name`; spills of functions it calls are counted in. nullopt where the log
// does not tell its registers.
std::optional<KernelResources> read_ptxas_log(std::string_view log, const std::string& name);

}  // namespace vqgen
