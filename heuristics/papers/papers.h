// Methods of papers that choosing never takes: no line of tests/golden/choices.txt and no tuned row
// has one, on any GPU. They stay so that the papers' results can be reproduced:
//
//   method                                  paper          asked for by
//   entries in registers (place.h)          VQ-LLM, V-B    --placement vq-llm, dev ablate
//   fusion registers or shared, GEMM mma    VQ-LLM, VI-B   --placement vq-llm, dev ablate
//   forms naive, tiled and coarsened        INT8 study     dev space --papers
//
// A config's plan may have any of them too. docs/lab/placement.md says what each costs. ablation/
// has the rows of `vqgen dev ablate`. The device code of these methods is beside the code of what
// is chosen, in the same templates: vq/codebook/levels.cuh, vq/ops/fragment_exchange.cuh and
// vq/kernels/scalar_forms/.
#pragma once

#include "heuristics/check.h"

namespace vqgen {

struct Candidates;

// Adds the plans of the problem's op by the papers' methods that no other way asks for.
void add_paper_plans(Candidates& to);

// VQ-LLM's choice (VI-B2): registers where the operand of one product takes fewer than `threshold`
// shuffles, else shared memory.
LinearFusion fusion_by_shuffles(int vector_size, int threshold = 5);

// The plan with VQ-LLM's choice, if it is one of GEMM mma: where check() refuses that, with shared
// memory; else as it is. Boundaries do not matter.
Plan with_paper_fusion(const Plan& plan, const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
