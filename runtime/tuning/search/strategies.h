// Strategies: which candidates are measured next. Deterministic given the seed and the answers.
//
// exhaustive  all, in the cost model's order.
// random      drawn without replacement.
// model       the cheapest by the cost model, corrected by measurements (CostCorrection). Every
//             second turn goes to the cheapest of each kind of plan until all kinds are known, and
//             one in eight is random, in case the model is wrong.
// local       climbs from the best known plan through neighbours by expected cost, cheapest first.
//             It starts at the rules' plan and the cheapest of each kind. If the three best of a
//             climb have no neighbour left, the next climb starts at as many model-cheap and random
//             plans.
#pragma once

#include <memory>

#include "runtime/tuning/search/tune.h"

namespace vqgen {

// The plans that a tuning may measure: the problem's whole space, the default, the rules' plan and
// the incumbent, each with its cost by the model; and which plans are neighbours.

struct Candidate {
  Plan plan;
  std::string kind = {};  // kind_of()
  std::optional<double> expected_us =
      std::nullopt;  // by the cost model, if its dataflow has coefficients
  // expected_us, else the time of the counted work at the GPU's ceilings: the sum of the parts that
  // follow each other and the longest of the parts that overlap. It is not a time, but it orders
  // plans better than nothing.
  double guess_us = 0;
};

// Candidates are distinct, and check() accepts each. Places are indices into them.
struct TuningSpace {
  std::vector<Candidate> candidates;  // the space in its order, then the other plans
  std::size_t feasible = 0;           // plans of the space: the first `feasible` candidates
  std::size_t default_place = 0;      // choose()'s plan, placed by the profiles
  std::optional<std::size_t> rules;   // choose()'s plan by the rules, if check() accepts it
  std::optional<std::size_t> incumbent;
  std::vector<std::size_t> by_cost;  // all places: by expectation, then by guess
};

// Leaves out an incumbent that check() refuses here. Throws Error(infeasible) as choose().
TuningSpace tuning_space(const Problem& problem, const GpuSpec& gpu,
                         std::span<const AccessCounts> profiles,
                         const std::optional<Plan>& incumbent);

// The places by expectation, the cheapest first, then those without one by their guess; ties in
// their order.
std::vector<std::size_t> places_by_cost(const std::vector<Candidate>& candidates);

// The fields of a plan's dataflow, one array per field: a placement's four numbers, or the value in
// [0].
using PlanAxes = std::vector<std::array<int, 4>>;
PlanAxes plan_axes(const Plan& plan);

// Candidates of one dataflow that differ in one field. A map from the plans with one field blanked
// finds them all at once, field by field.
class Neighbours {
 public:
  explicit Neighbours(const std::vector<Candidate>& candidates);
  // The neighbours of a place, in the order of places, without itself.
  std::vector<std::size_t> of(std::size_t place) const;

 private:
  std::vector<std::vector<std::size_t>> groups_;    // places that are alike except for one field
  std::vector<std::vector<std::size_t>> group_of_;  // [place][field]
};

// All that a strategy knows: what a tuning has asked so far, and the answers.
struct Answer {
  std::size_t place = 0;     // place of the candidate
  std::optional<double> us;  // empty if it failed
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

// Corrects the cost model: log(measured / guess) is the sum of one factor each for the dataflow,
// the kind of plan and every field's value. Passes fit a factor to the mean residual, shrunk as if
// one measurement (dataflow, kind) or four (field) had agreed with the model.
class CostCorrection {
 public:
  explicit CostCorrection(const std::vector<Candidate>& candidates);

  // Replaces what it learnt before. A failed candidate counts as four times its guess, so that a
  // kind that keeps failing is left.
  void learn(const History& history);

  // The corrected time of a place.
  double us(std::size_t place) const;

 private:
  const std::vector<Candidate>& candidates_;
  std::vector<std::vector<std::size_t>> features_;  // [place]: dataflow, kind, then the fields
  std::vector<double> effects_;                     // by feature, logarithms
};

class SearchStrategy {
 public:
  virtual ~SearchStrategy() = default;
  // The next places to measure: distinct, not asked before, at most `most` (at least 1). Empty only
  // if all were asked. The default and the incumbent are in the history from the start.
  virtual std::vector<std::size_t> next(const History& history, std::size_t most) = 0;
};

// `space` must outlive it.
std::unique_ptr<SearchStrategy> make_strategy(StrategyName name, const TuningSpace& space,
                                              std::uint64_t seed);

}  // namespace vqgen
