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

// Dataflow slices: the fewest slices of entries that a block holds one of, and outputs for one wave
// of blocks. check() may refuse it.
LinearPlan choose_slices(const Problem& problem, const GpuSpec& gpu);

// Whether the codebooks of a unit are large enough to hold slices of their entries alone: a block
// has no room for them four times.
bool wants_slices(const Linear& op, const GpuSpec& gpu);

// The loads of codes that dataflow slices takes: the widest that rows of codes are whole ones of.
// Halves of it serve too. 0 where the codes of a sub-vector are no part of a word: no slices then.
int slice_code_words(const Linear& op);

// All columns that one codebook serves, in whole steps. Requires code_words from slice_code_words().
int slice_chunk(const Linear& op, const LinearPlan& plan);

// Outputs a warp, in whole groups, with which blocks of dataflow slices fill the GPU once.
int slice_outputs(const Linear& op, const LinearPlan& plan, const GpuSpec& gpu);

// The plan of one dataflow; check() may refuse it.
LinearPlan choose_linear(const Problem& problem, const GpuSpec& gpu, LinearDataflow dataflow);

// The one that is expected to be faster.
LinearPlan choose_linear(const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
