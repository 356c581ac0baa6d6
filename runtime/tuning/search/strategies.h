// Strategies: which candidates are measured next. Deterministic given the seed and the answers.
//
// exhaustive  all, in the cost model's order.
// random      drawn without replacement.
// model       the cheapest by the cost model, corrected by what was measured (CostCorrection).
//             The cheapest of each kind of plan take every second turn until all kinds are known,
//             and one in eight is drawn at random, for what the model is wrong about.
// local       climbs: from the best known, neighbours (tuning_space.h) by expected cost, cheapest
//             first. Starts are the rules' plan and the cheapest of each kind; where the three best
//             of a climb have no neighbour left, the next climb starts at as many model-cheap and
//             random plans.
#pragma once

#include <memory>

#include "runtime/tuning/search/tune.h"
#include "runtime/tuning/search/tuning_space.h"

namespace vqgen {

// What a tuning has asked so far and what came of it: all that a strategy goes by.
struct Answer {
  std::size_t place = 0;     // of the candidate
  std::optional<double> us;  // nothing where it failed
};

struct History {
  std::vector<Answer> answers;  // in the order of asking
  std::vector<bool> asked;      // by place

  explicit History(std::size_t candidates) : asked(candidates, false) {}
  void add(std::size_t place, std::optional<double> us) {
    answers.push_back({place, us});
    asked[place] = true;
  }
};

// What measurements say of the cost model: factors of its expectation (or guess, where it has
// none), by dataflow, by kind of plan and by the value of each field within a dataflow.
//
// log(measured / guess) of a plan is taken as the sum of its factors' logarithms. They are
// fitted by passes of means of what the others leave over, each shrunk to 0 (factor 1) as if
// further measurements had agreed with the model: one for a dataflow and for a kind, which decide
// most, four for a field's value. So what was not measured is as the model says.
class CostCorrection {
 public:
  explicit CostCorrection(const std::vector<Candidate>& candidates);

  // Forgets what it learnt before. A candidate that failed counts as four times its guess,
  // so that a kind that keeps failing is left.
  void learn(const History& history);

  // Of a place.
  double us(std::size_t place) const;

 private:
  const std::vector<Candidate>& candidates_;
  std::vector<std::vector<std::size_t>> features_;  // [place]: dataflow, kind, then the fields
  std::vector<double> effects_;                     // by feature, logarithms
};

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
