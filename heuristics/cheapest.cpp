#include "heuristics/cheapest.h"

#include "heuristics/space/candidates.h"

namespace vqgen {
namespace {

class Cheapest final : public Candidates {
 public:
  Cheapest(const Problem& problem, const GpuSpec& gpu, std::span<const HotnessProfile> profiles,
           const CostProfile& coefficients)
      : Candidates(problem, gpu), model_(problem, gpu, profiles, coefficients) {}

  void add_each(LinearPlan plan, std::span<const Placement> placements) override {
    if (!below(model_.least_us(plan))) return;
    for (const Placement& each : placements) {
      if (!below(model_.least_us(each))) continue;
      plan.codebook = each;
      add(plan);
    }
  }

  // One that comes twice is not cheaper than itself.
  void add(const Plan& plan) override {
    if (!check(plan, problem(), gpu()).ok) return;
    const std::optional<Cost> cost = model_(plan);
    if (!cost || !below(cost->us)) return;
    best = plan;
    us_ = cost->us;
  }

  std::optional<Plan> best;

 private:
  bool below(double us) const { return !best || us < us_; }

  CostModel model_;
  double us_ = 0;  // of the best
};

}  // namespace

std::optional<Plan> cheapest_plan(const Problem& problem, const GpuSpec& gpu,
                                  std::span<const HotnessProfile> profiles,
                                  const CostProfile& coefficients) {
  Cheapest cheapest(problem, gpu, profiles, coefficients);
  add_plans(cheapest, SpacePlacement::any);
  return cheapest.best;
}

}  // namespace vqgen
