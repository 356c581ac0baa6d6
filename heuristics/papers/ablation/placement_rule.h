// Where an ablation puts codebooks, as a rule that applies to any plan shape: rows of an ablation
// that differ in placement alone can then have the same shapes.
#pragma once

#include <span>

#include "core/access/access_counts.h"
#include "heuristics/check.h"

namespace vqgen {

// none: all entries in global memory; all: in shared memory; most: as many as fit there, equally
// many per operand; half: half of each operand; slack: as many as cost no resident block (place(),
// strategy paper), but some and not all; keys, values: all of one operand.
// lane_copies: all, with a copy per lane of a phase; half_copies: half as many copies;
// value_copies: copies of the values alone; weighed: the copies that place() chooses.
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
  int registers = 0;  // hottest entries of each codebook held in registers
  bool operator==(const PlacementRule&) const = default;
};

struct Laid {
  Plan plan;
  Verdict verdict;  // why the shape cannot be placed so
};

// The shape's own boundaries do not matter. Pure.
Laid lay(const Plan& shape, const PlacementRule& rule, const Problem& problem, const GpuSpec& gpu,
         std::span<const AccessCounts> profiles);

// A quick test: false if the rule gives these boundaries for no shape, true if it may.
bool may_follow(const Plan& plan, const PlacementRule& rule, const Problem& problem);

// True if laying out a shape takes so long that only some shapes should be.
bool takes_long(const PlacementRule& rule);

// The plan with all entries in global memory.
Plan without_cache(Plan plan, const Problem& problem);

}  // namespace vqgen
