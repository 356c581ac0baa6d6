// The fusion of dataflow fragments as the solver sees it: what the lanes of a warp look up in one
// step of templates/vq/kernels/linear_fragments/kernel.cuh, what they multiply, and the exchange in
// between. Axes: m, outputs; k, the 32 columns of a step.
#pragma once

#include "heuristics/check.h"
#include "heuristics/fusion/solve.h"

namespace vqgen {

// As FragmentCodes has it. Registers: the words of the first output's entries, then of the
// second's. `fragment_rows` is 4 or 8.
fusion::FragmentLayout looked_up(LinearFusion fusion, int vector_size, int fragment_rows);

// The operand A of a step with the columns in their order: with 8 rows of x two products of 16
// outputs, with 4 one, whose rows g and g + 8 are columns 0..15 and 16..31 of output g.
fusion::FragmentLayout multiplied(int fragment_rows);

// What happens in between. permute: nothing, in the solver's order of the columns; with pairs the
// kernel takes the words of an octet in turn, which is another such order. registers: the kernel's
// exchange, step by step. shared: the one that is spared.
fusion::Exchange fragment_exchange(LinearFusion fusion, int vector_size, int fragment_rows);

// The paper's choice (VI-B2): registers where the operand of one product takes fewer than
// `threshold` shuffles, else shared memory.
LinearFusion fusion_by_shuffles(int vector_size, int threshold = 5);

// The plan with the paper's choice, if it is one of fragments: where check() refuses that, with
// shared memory; else as it is. Boundaries do not matter.
Plan with_paper_fusion(const Plan& plan, const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
