// The ring of codes of attention by fragments (templates/vq/kernels/attention_mma/ring_codes.cuh):
// where it may be, and where the rules take it.
#pragma once

#include "heuristics/check.h"

namespace vqgen {

void judge_ring(Judge& judge, const AttentionMma& plan, const AttentionDecode& op,
                const GpuSpec& gpu);

// Gives a plan whose other fields are chosen a ring where it is worth one and check() accepts it.
void take_ring(AttentionMma& plan, const AttentionDecode& op, const GpuSpec& gpu);

}  // namespace vqgen
