// The conflict model where all entries are read as often: the expectation itself, without draws.
#pragma once

#include "heuristics/placement/conflicts.h"

namespace vqgen {

// Expected passes of a phase whose lanes each want any of `entries` entries of any of the table's
// units; what conflict_factor gives for even accesses (conflicts.h).
double expected_passes(const SharedTable& table, int entries);

}  // namespace vqgen
