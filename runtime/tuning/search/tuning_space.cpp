#include "runtime/tuning/search/strategies.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "heuristics/choose.h"
#include "heuristics/placement/place.h"
#include "heuristics/space.h"

namespace vqgen {
namespace {

// The place of a plan, which is added if it is new.
std::size_t place_of(TuningSpace& space, const Plan& plan) {
  auto& all = space.candidates;
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Candidate& each) { return each.plan == plan; });
  if (found != all.end()) return static_cast<std::size_t>(found - all.begin());
  all.push_back({.plan = plan});
  return all.size() - 1;
}

// The plan that compile takes without a table: with profiles, its boundaries are placed too, before
// any kernel has told its registers.
Plan without_table(const Problem& problem, const GpuSpec& gpu,
                   std::span<const AccessCounts> profiles) {
  Plan chosen = choose(problem, gpu, {.profiles = profiles});
  return profiles.empty() ? chosen : place(chosen, problem, gpu, profiles).plan;
}

double at_ceilings(const CostParts& parts) {
  constexpr auto kOverlapping =
      static_cast<std::size_t>(CostPart::memory);  // it and those after overlap
  double in_turn = 0;
  double longest = 0;
  for (std::size_t i = 0; i < kCostParts; ++i) {
    if (i < kOverlapping) {
      in_turn += parts.of[i];
    } else {
      longest = std::max(longest, parts.of[i]);
    }
  }
  return in_turn + longest;
}

}  // namespace

TuningSpace tuning_space(const Problem& problem, const GpuSpec& gpu,
                         std::span<const AccessCounts> profiles,
                         const std::optional<Plan>& incumbent) {
  const Plan chosen = without_table(problem, gpu, profiles);
  const Plan rules = propose(problem, gpu, {.chooser = Chooser::rules, .profiles = profiles});
  TuningSpace result;
  for (Plan& plan : space(problem, gpu, {.most = 0}).plans) {
    result.candidates.push_back({.plan = std::move(plan)});
  }
  result.feasible = result.candidates.size();
  result.default_place = place_of(result, chosen);
  if (check(rules, problem, gpu).ok) result.rules = place_of(result, rules);
  if (incumbent && is_plan_of(*incumbent, problem) && check(*incumbent, problem, gpu).ok) {
    result.incumbent = place_of(result, *incumbent);
  }
  CostModel model(problem, gpu, profiles);
  for (Candidate& each : result.candidates) {
    each.kind = kind_of(each.plan, problem);
    if (const auto cost = model(each.plan)) each.expected_us = cost->us;
    each.guess_us = each.expected_us.value_or(at_ceilings(model.ideal(each.plan)));
  }
  result.by_cost = places_by_cost(result.candidates);
  return result;
}

std::vector<std::size_t> places_by_cost(const std::vector<Candidate>& candidates) {
  std::vector<std::size_t> places(candidates.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  const auto cost = [&](std::size_t place) {
    const Candidate& each = candidates[place];
    return std::pair(!each.expected_us, each.guess_us);
  };
  std::stable_sort(places.begin(), places.end(),
                   [&](std::size_t a, std::size_t b) { return cost(a) < cost(b); });
  return places;
}

PlanAxes plan_axes(const Plan& plan) {
  PlanAxes axes;
  std::visit(
      [&]<class OpPlan>(const OpPlan& each) {
        for_each_field<OpPlan>([&](const auto& field) {
          const auto& value = each.*field.member;
          if constexpr (HasFields<std::remove_cvref_t<decltype(value)>>) {
            axes.push_back({value.registers, value.replicated, value.copies, value.shared});
          } else {
            axes.push_back({static_cast<int>(value), 0, 0, 0});
          }
        });
      },
      plan);
  return axes;
}

Neighbours::Neighbours(const std::vector<Candidate>& candidates) : group_of_(candidates.size()) {
  constexpr std::array kBlank{-1, -1, -1, -1};                      // no field holds it
  std::map<std::pair<std::size_t, PlanAxes>, std::size_t> numbers;  // by dataflow and axes
  for (std::size_t place = 0; place < candidates.size(); ++place) {
    const Plan& plan = candidates[place].plan;
    PlanAxes axes = plan_axes(plan);
    for (auto& axis : axes) {
      const auto value = std::exchange(axis, kBlank);
      const auto [found, added] = numbers.try_emplace({plan.index(), axes}, groups_.size());
      if (added) groups_.emplace_back();
      groups_[found->second].push_back(place);
      group_of_[place].push_back(found->second);
      axis = value;
    }
  }
}

std::vector<std::size_t> Neighbours::of(std::size_t place) const {
  std::vector<std::size_t> all;
  for (const std::size_t group : group_of_[place]) {
    for (const std::size_t other : groups_[group]) {
      if (other != place) all.push_back(other);
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace vqgen
