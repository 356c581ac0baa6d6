// Problem and GPU to Plan, purely.
#pragma once

#include <span>

#include "core/check.h"
#include "core/json.h"

namespace vqgen {

// The heuristics' plan, which check() may still refuse: a user's own fields may go over it first.
// Error(infeasible) with check()'s reason where no kernel does the problem, whatever the plan.
Plan propose(const Problem& problem, const GpuSpec& gpu);

// The same with a user's fields laid over it, one object after the other: of the dataflow that they
// name, so that its other fields are those that it wants. Error(bad_input) on a field that the op's
// plan lacks or a value out of range.
Plan propose(const Problem& problem, const GpuSpec& gpu, std::span<const JsonCursor> fixed);

// The first, accepted by check(), or Error(infeasible) with its reason.
Plan choose(const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
