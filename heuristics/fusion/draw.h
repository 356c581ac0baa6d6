// An exchange for people: who dequantizes what, who sends which register to whom, who consumes
// what.
#pragma once

#include <string>
#include <vector>

#include "heuristics/fusion/exchange.h"

namespace vqgen::fusion {

// The figures, the order of the columns where it is not theirs, and the first four lanes, by
// mini-warps, which are lanes that trade with each other; the shuffles where registers are fused.
// docs/explain.md shows how to read it.
std::vector<std::string> draw(const Exchange& exchange);

}  // namespace vqgen::fusion
