// Where an ablation puts codebooks, said before a plan's shape is known, and what that comes to for
// one: so that rows which differ in placement alone can be given the same shapes.
#pragma once

#include <span>

#include "core/access/access_counts.h"
#include "heuristics/check.h"

namespace vqgen {

// none: all entries in global memory. all: all in shared memory. most: as many as a block can hold
// there, as many of each operand. half: of each operand. slack: as many as cost no resident block
// (place(), the paper's strategy), but neither none nor all. keys, values: all of one operand.
// lane_copies: all, with a copy for each lane of a phase; half_copies: for half of them.
// value_copies: a copy a lane of the values' alone. weighed: what place() copies by its own
// measure.
enum class Near {
  none,
  all,
  most,
  half,
  slack,
  keys,
  values,
  lane_copies,
  half_copies,
  value_copies,
  weighed
};

struct PlacementRule {
  Near near = Near::none;
  int registers = 0;  // hottest entries of each codebook that stand in registers instead
  bool operator==(const PlacementRule&) const = default;
};

struct Laid {
  Plan plan;
  Verdict verdict;  // why the shape cannot be placed so
};

// The shape's own boundaries do not matter. Pure.
Laid lay(const Plan& shape, const PlacementRule& rule, const Problem& problem, const GpuSpec& gpu,
         std::span<const AccessCounts> profiles);

// Whether boundaries of the plan can come of the rule for some shape: false is certain, and quick.
bool may_follow(const Plan& plan, const PlacementRule& rule, const Problem& problem);

// Whether laying a shape by it takes so long that only some shapes should be.
bool takes_long(const PlacementRule& rule);

// The plan with all entries in global memory.
Plan without_cache(Plan plan, const Problem& problem);

}  // namespace vqgen
