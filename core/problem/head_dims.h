// The sizes of heads that kernels have.
#pragma once

#include <string>

#include "core/problem/problem.h"

namespace vqgen {

// Why no kernel has heads of the problem's sizes, and the sizes that kernels have: "100 is not
// built yet; use 64, 96, 128 or 256", and the field of the shape. None if one does, and of ops
// without heads.
std::optional<FormatFault> head_dim_fault(const Problem& problem);

// For a KLT format at `path`, of heads of another size: the function that makes one of this size,
// as the end of a sentence. Empty where it makes none, or no attention has such heads.
std::string klt_remedy(const VqFormat& format, const std::string& path, int head_dim);

}  // namespace vqgen
