// The plan of gemv: a warp a few outputs, x staged in chunks that hold whole codebook units.
#pragma once

#include "core/check.h"

namespace vqgen {

GemvPlan choose_gemv(const Gemv& op, const GpuSpec& gpu);

}  // namespace vqgen
