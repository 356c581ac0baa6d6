// Register estimates of mma attention before compiling.
#pragma once

#include "core/plan/plan.h"
#include "core/problem/problem.h"

namespace vqgen {

// True if lookups of keys or of values wait for global memory.
bool looks_up_in_global(const AttentionMma& plan, const AttentionDecode& op);

// Estimate of the registers per thread, fitted to kernels of sm_90; it errs rather above than
// below.
int registers_of(const AttentionMma& plan, const AttentionDecode& op);

}  // namespace vqgen
