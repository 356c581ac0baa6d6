// The plans of gemv and gemm.
#pragma once

#include <optional>

#include "core/check.h"

namespace vqgen {

// Dataflow lanes: a warp a few outputs, x staged in chunks that hold whole codebook units.
LinearPlan choose_lanes(const Problem& problem, const GpuSpec& gpu);

// Dataflow fragments: enough warps to fill the GPU, along the outputs first and then along the
// columns. nullopt where check() accepts none.
std::optional<LinearPlan> choose_fragments(const Problem& problem, const GpuSpec& gpu);

// Dataflow warpgroups: as many outputs a block as fill the GPU once, then splits. nullopt where
// check() accepts none.
std::optional<LinearPlan> choose_warpgroups(const Problem& problem, const GpuSpec& gpu);

// Rows of x that a block of warp groups takes so that none is read twice: the least power of two.
int warpgroup_rows(int rows);

// Dataflow tables: a split a chunk of 32 sub-vectors. check() may refuse it, with the reason why
// there are no tables for the problem.
LinearPlan choose_tables(const Problem& problem);

// The plan of one dataflow; check() may refuse it.
LinearPlan choose_linear(const Problem& problem, const GpuSpec& gpu, LinearDataflow dataflow);

// The one that is expected to be faster.
LinearPlan choose_linear(const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
