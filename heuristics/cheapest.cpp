#include "heuristics/cheapest.h"

#include "heuristics/space/candidates.h"

namespace vqgen {
namespace {

class Cheapest final : public Candidates {
 public:
  Cheapest(const Problem& problem, const GpuSpec& gpu, std::span<const HotnessProfile> profiles,
           bool last_block, const CostProfile& coefficients)
      : Candidates(problem, gpu),
        model_(problem, gpu, profiles, coefficients),
        last_block_(last_block) {}

  void add_each(Plan plan, std::span<const Placement> placements) override {
    add_placed(plan, placements);
    if (!last_block_) return;
    *placement_of(plan, Operand::weights) = all_global();
    if (const auto merging = merged_by_last_block(plan, problem(), gpu())) {
      add_placed(*merging, placements);
    }
  }

  void add(const Plan& plan) override {
    add_one(plan);
    if (!last_block_) return;
    if (const auto merging = merged_by_last_block(plan, problem(), gpu())) add_one(*merging);
  }

  std::optional<Plan> best;

 private:
  bool below(double us) const { return !best || us < us_; }

  // Costs are of plans that check() accepts; it accepts no placement where it refuses none at all.
  void add_placed(Plan plan, std::span<const Placement> placements) {
    Placement& placement = *placement_of(plan, Operand::weights);
    placement = all_global();
    if (!check(plan, problem(), gpu()).ok) return;
    if (!below(model_.least_us(plan))) return;
    for (const Placement& each : placements) {
      if (!below(model_.least_us(each))) continue;
      placement = each;
      add_one(plan);
    }
  }

  // One that comes twice is not cheaper than itself.
  void add_one(const Plan& plan) {
    if (!check(plan, problem(), gpu()).ok) return;
    const std::optional<Cost> cost = model_(plan);
    if (!cost || !below(cost->us)) return;
    best = plan;
    us_ = cost->us;
  }

  CostModel model_;
  bool last_block_;
  double us_ = 0;  // of the best
};

}  // namespace

std::optional<Plan> cheapest_plan(const Problem& problem, const GpuSpec& gpu,
                                  std::span<const HotnessProfile> profiles, bool last_block,
                                  const CostProfile& coefficients) {
  Cheapest cheapest(problem, gpu, profiles, last_block, coefficients);
  add_plans(cheapest, SpacePlacement::any);
  return cheapest.best;
}

}  // namespace vqgen
