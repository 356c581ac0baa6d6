// Strategies: which candidates are measured next. Deterministic given the seed and the answers.
//
// exhaustive  all, in the cost model's order.
// random      drawn without replacement.
// model       the cheapest by the cost model, corrected by what was measured (CostCorrection).
//             The cheapest of each kind of plan take every second turn until all kinds are known,
//             and one in eight is drawn at random, for what the model is wrong about.
// local       climbs: from the best known, neighbours by expected cost, cheapest
//             first. Starts are the rules' plan and the cheapest of each kind; where the three best
//             of a climb have no neighbour left, the next climb starts at as many model-cheap and
//             random plans.
#pragma once

#include <memory>

#include "runtime/tuning/search/tune.h"

namespace vqgen {

// What a tuning may measure: the whole space of the problem and beside it the default, the rules'
// plan and the incumbent, with what the cost model expects of each; and which plans are neighbours.

struct Candidate {
  Plan plan;
  std::string kind = {};  // kind_of()
  std::optional<double> expected_us =
      std::nullopt;  // by the cost model, where its dataflow has coefficients
  // The same; else what the counted work takes at the GPU's ceilings, which orders plans better
  // than nothing, though it is no time: the parts that follow each other, and the longest of those
  // that overlap.
  double guess_us = 0;
};

// Candidates are distinct, and check() accepts each. Places are indices into them.
struct TuningSpace {
  std::vector<Candidate> candidates;  // the space in its order, then what is not among it
  std::size_t feasible = 0;           // plans of the space: the first so many candidates
  std::size_t default_place = 0;      // of choose(), placed by the profiles
  std::optional<std::size_t> rules;   // of choose() by the rules, where check() accepts it
  std::optional<std::size_t> incumbent;
  std::vector<std::size_t> by_cost;  // all places: by expectation, then those by guess alone
};

// An incumbent that check() refuses here is left out. Error(infeasible) as choose().
TuningSpace tuning_space(const Problem& problem, const GpuSpec& gpu,
                         std::span<const AccessCounts> profiles,
                         const std::optional<Plan>& incumbent);

// The places by expectation, the cheapest first, then those without one by their guess; equal ones
// in their order.
std::vector<std::size_t> places_by_cost(const std::vector<Candidate>& candidates);

// The fields of a plan's dataflow, a placement as one of them: [0] of the others' four numbers.
using PlanAxes = std::vector<std::array<int, 4>>;
PlanAxes plan_axes(const Plan& plan);

// Candidates of one dataflow that differ in one field. All of them are found at once, by a map from
// the plans with one field blanked, field after field: some thousands of plans take tens of
// milliseconds.
class Neighbours {
 public:
  explicit Neighbours(const std::vector<Candidate>& candidates);
  // In order of place, without the place itself.
  std::vector<std::size_t> of(std::size_t place) const;

 private:
  std::vector<std::vector<std::size_t>> groups_;    // places that are alike but for one field
  std::vector<std::vector<std::size_t>> group_of_;  // [place][field]
};

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
