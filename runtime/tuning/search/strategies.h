// Strategies: which candidates are measured next. Deterministic given the seed and the answers.
//
// exhaustive  all, in the cost model's order.
// random      drawn without replacement.
// model       the cheapest by the cost model, corrected by what was measured (cost_correction.h).
//             The cheapest of each kind of plan take every second turn until all kinds are known,
//             and one in eight is drawn at random, for what the model is wrong about.
// local       climbs: from the best known, neighbours (tuning_space.h) by expected cost, cheapest
//             first. Starts are the rules' plan and the cheapest of each kind; where the three best
//             of a climb have no neighbour left, the next climb starts at as many model-cheap and
//             random plans.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/tuning/search/history.h"
#include "runtime/tuning/search/tune.h"
#include "runtime/tuning/search/tuning_space.h"

namespace vqgen {

class SearchStrategy {
 public:
  virtual ~SearchStrategy() = default;
  // The next places to measure: distinct, none asked before, `most` at most (1 at least). Empty
  // only where all were asked. The default and the incumbent are in the history from the start.
  virtual std::vector<std::size_t> next(const History& history, std::size_t most) = 0;
};

// `space` must outlive it.
std::unique_ptr<SearchStrategy> make_strategy(StrategyName name, const TuningSpace& space,
                                              std::uint64_t seed);

}  // namespace vqgen
