// Where codebooks stand: shared memory where the whole block still fits, else global memory.
#pragma once

#include "core/check.h"

namespace vqgen {

// Tries the levels of keys and values apart, both shared first, then the keys alone, then the
// values alone, then neither. False where the block does not fit even so.
bool place_codebooks(AttentionDecodePlan& plan, const AttentionDecode& op, const GpuSpec& gpu);

// Shared where it fits with a chunk of columns as long as the plan's, or a shorter one that the
// codebook's extent allows; else global.
void place_codebooks(LinearPlan& plan, const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
