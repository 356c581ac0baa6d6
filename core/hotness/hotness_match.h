// The hotness profiles that a problem's operands have in a profile file.
#pragma once

#include <string>
#include <vector>

#include "core/hotness/hotness_profile.h"
#include "core/problem/problem.h"

namespace vqgen {

// One profile for each operand of the problem: the codebooks of all items of that operand one after
// another, since one kernel serves all layers that have its problem. `parts` is left empty and
// `units` counts those of all items, so that the result is for summarise() and share_below() and
// not for validate(). `item` is the item's name, or "3 items".
//
// Error(bad_input) that begins with `source` where an operand has no profile, or one of another
// format or another number of units than the problem's tensor has. Profiles of other operands are
// ignored.
std::vector<HotnessProfile> match_hotness(const std::vector<HotnessProfile>& profiles,
                                          const Problem& problem, const std::string& source);

}  // namespace vqgen
