// The fusion solver: which thread dequantizes which entries, in which order free axes are laid out,
// and which shuffles remain. Every word makes at most one hop, and the masks of all threads' hops
// are shared.
//
// How few: a shuffle brings a thread at most one word, so a thread that dequantizes `kept` of its
// `registers` words itself needs registers - kept shuffles, whatever the route. Where both layouts
// are bit-linear the entries of a mini-warp of M = 2^k threads meet all of its threads alike, and
// M - 1 masks with registers / M shuffles each reach that bound: it is the minimum (8-wide entries
// for one m16n8k16: M = 4, three shuffles). Elsewhere the choice of entries is exact over all
// single-hop exchanges of up to 8 entries (no relays, see docs/explain.md), and beyond keeps
// as many words in place as can be; Exchange::fewest says how far from the bound it ended.
//
// Free axes: for layouts that permute bits, k above is counted axis by axis, and the pairing of
// bits chosen has the least; so zero shuffles are found whenever any order at all gives them. For
// others a backtracking search over orders looks for zero shuffles, within a budget of steps; where
// it finds none the natural order is taken, or any that makes whole registers agree.
#pragma once

#include <string>
#include <vector>

#include "heuristics/fusion/exchange.h"

namespace vqgen::fusion {

struct Options {
  std::vector<std::string> free_axes = {};  // names of axes whose order may be changed
  bool pinned = false;        // every thread dequantizes what the producer's layout says
  int shuffle_threshold = 5;  // fewer shuffles are fused in registers: VQ-LLM, VI-B2
};

// Both layouts are of the same tile (whose axes may stand in another order), threads, registers and
// slots; else Error(bad_input), as for a free axis that there is not.
Exchange solve(const FragmentLayout& producer, const FragmentLayout& consumer,
               const Options& options = {});

}  // namespace vqgen::fusion
