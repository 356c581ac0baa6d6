// The shared-memory code pipeline of mma attention
// (templates/vq/kernels/attention_mma/ring_codes.cuh): which plans may have it, and which the rules
// give it.
#pragma once

#include "heuristics/check.h"

namespace vqgen {

void judge_ring(Judge& judge, const AttentionMma& plan, const AttentionDecode& op,
                const GpuSpec& gpu);

// Gives a plan whose other fields are chosen a ring where it is worth one and check() accepts it.
void take_ring(AttentionMma& plan, const AttentionDecode& op, const GpuSpec& gpu);

}  // namespace vqgen
