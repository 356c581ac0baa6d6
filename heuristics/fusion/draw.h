// An exchange for people: who dequantizes what, who sends which register to whom, who consumes
// what.
#pragma once

#include <string>

#include "heuristics/fusion/exchange.h"

namespace vqgen::fusion {

// Several lines: the figures, the orders that are not natural, and the first mini-warps, at least
// `threads` threads of them or all there are; the steps where registers are fused. docs/explain.md
// shows how to read it.
std::string draw(const Exchange& exchange, int threads = 4);

}  // namespace vqgen::fusion
