// Strategy paper's fusion of dataflow fragments.
#pragma once

#include "heuristics/check.h"

namespace vqgen {

// The paper's choice (VI-B2): registers where the operand of one product takes fewer than
// `threshold` shuffles, else shared memory.
LinearFusion fusion_by_shuffles(int vector_size, int threshold = 5);

// The plan with the paper's choice, if it is one of fragments: where check() refuses that, with
// shared memory; else as it is. Boundaries do not matter.
Plan with_paper_fusion(const Plan& plan, const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
