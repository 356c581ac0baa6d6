// What a thread of attention by fragments takes, before it is compiled.
#pragma once

#include "core/plan/plan.h"
#include "core/problem/problem.h"

namespace vqgen {

// Whether lookups of keys or of values wait for global memory.
bool looks_up_in_global(const AttentionMma& plan, const AttentionDecode& op);

// Registers that a thread would take, about: fitted to 1500 kernels of sm_90, most of which spill
// nothing; off by 10 of them in the median, rather above than below. What keys of int8 entries take
// less, of 96 and of 256 channels, to 266 of them.
int registers_of(const AttentionMma& plan, const AttentionDecode& op);

// How many times as long values of int8 entries take beside raw tokens or several query tokens.
double times_of_byte_values(const AttentionDecode& op);

}  // namespace vqgen
