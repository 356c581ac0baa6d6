// What the parts of the space share: whom they add their plans to, and the values that several axes
// have in common. A part is a function that adds the plans of one dataflow, in a fixed order.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "heuristics/space.h"

namespace vqgen {

class Candidates {
 public:
  Candidates(const Problem& problem, const GpuSpec& gpu) : problem_(problem), gpu_(gpu) {}
  virtual ~Candidates() = default;

  // May come twice, and check() may refuse it.
  virtual void add(const Plan& plan) = 0;
  // The same with each of these placements of its one operand's codebooks.
  virtual void add_each(Plan plan, std::span<const Placement> placements) {
    for (const Placement& each : placements) {
      *placement_of(plan, Operand::weights) = each;
      add(plan);
    }
  }

  const Problem& problem() const { return problem_; }
  const GpuSpec& gpu() const { return gpu_; }

 private:
  Problem problem_;
  GpuSpec gpu_;
};

// Keeps each plan that check() accepts, once.
class DistinctPlans final : public Candidates {
 public:
  using Candidates::Candidates;
  void add(const Plan& plan) override;
  std::vector<Plan> take() { return std::move(plans_); }

 private:
  std::vector<Plan> plans_;
  std::unordered_multimap<std::size_t, std::size_t> seen_;  // a plan's hash, its place
};

// Whole codebooks everywhere: global, shared once, and with a copy for each lane of a phase or for
// half of them (conflicts.h).
std::vector<Placement> whole_placements(const VqFormat& format, SpacePlacement allowed);

// The same but for those with copies.
std::vector<Placement> single_placements(const VqFormat& format, SpacePlacement allowed);

// Warps on a multiprocessor that a grid is cut up for, were all resident: from one in four slots of
// an SM's scheduler up to more than can be resident.
inline constexpr std::array kWarpTargets{4, 8, 16, 32, 64};

// The longest chunk of whole runs, at most `columns`, that holds whole codebook units or lies in
// one; 0 where there is none.
std::int64_t fitting_chunk(std::int64_t columns, std::int64_t run, std::int64_t unit,
                           std::int64_t in_features);

// The plans of all dataflows of the problem's op. Requires that check() accepts the problem.
void add_plans(Candidates& to, SpacePlacement allowed);

}  // namespace vqgen
