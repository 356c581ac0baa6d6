// What a tuning may measure: the whole space of the problem and beside it the default, the rules'
// plan and the incumbent, with what the cost model expects of each; and which plans are neighbours.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/gpu/gpu_spec.h"
#include "core/hotness/hotness_profile.h"
#include "core/plan/plan.h"
#include "core/problem/problem.h"

namespace vqgen {

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
                         std::span<const HotnessProfile> profiles,
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

}  // namespace vqgen
