// The plan of the space that the cost model expects to be the fastest: what
//
//   the cheapest of space(problem, gpu, {.most = 0, .last_block}).plans, the first of equal ones
//
// is, found without making the space. Its trick is that plans are judged as they are offered, by
// bounds that cost a fraction of a check and a count: first what a group of plans that are alike
// but for where their codebooks stand does beside codebooks, then, with what is counted of the
// group, each of its placements. Only what may be the cheapest so far is checked and counted whole.
#pragma once

#include <optional>
#include <span>

#include "heuristics/cost.h"

namespace vqgen {

// Requires that check() accepts the problem. Nothing where no plan of the space has a cost.
std::optional<Plan> cheapest_plan(const Problem& problem, const GpuSpec& gpu,
                                  std::span<const HotnessProfile> profiles, bool last_block,
                                  const CostProfile& coefficients = cost_profile());

}  // namespace vqgen
