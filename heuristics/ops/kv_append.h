// The plan of kv_append: a decode step has few rows, so that each is shared by as many blocks as
// the GPU has room for, and the entries of a codebook by the warps that a block has to spare.
#pragma once

#include "core/check.h"

namespace vqgen {

KvAppendPlan choose_kv_append(const KvAppend& op, const GpuSpec& gpu);

}  // namespace vqgen
