#include "heuristics/choose.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "heuristics/cheapest.h"
#include "heuristics/kernels/slice.h"
#include "heuristics/placement/place.h"
#include "heuristics/space.h"

namespace vqgen {
namespace {

void require(const Verdict& verdict, const Problem& problem) {
  if (!verdict.ok) throw Error(ErrorKind::infeasible, op_name(problem) + ": " + verdict.reason);
}

// The plan of the dataflow that `wanted` is of; check() may refuse it.
Plan of_dataflow(const Plan& wanted, const Problem& problem, const GpuSpec& gpu) {
  const Plan plan = visit_plan(wanted, problem, [&]<class P>(const P&, const OpOf<P>& op) {
    return Plan(Slice<P>::choose(op, gpu));
  });
  if (!std::holds_alternative<LinearWarpgroups>(plan) || !check(plan, problem, gpu).ok) return plan;
  return with_copies_where_they_win(plan, problem, gpu);
}

// The one that is expected to be the fastest: fragments where they can run, else lanes.
Plan by_rules(const Problem& problem, const GpuSpec& gpu) {
  if (std::holds_alternative<KvAppend>(problem)) return of_dataflow(AppendLanes{}, problem, gpu);
  const bool attention = std::holds_alternative<AttentionDecode>(problem);
  const Plan fragments =
      of_dataflow(attention ? Plan(AttentionFragments{}) : LinearFragments{}, problem, gpu);
  if (check(fragments, problem, gpu).ok) {
    return with_copies_where_they_win(fragments, problem, gpu, attention ? kWorthwhile : kClearly);
  }
  return of_dataflow(attention ? Plan(AttentionLanes{}) : LinearLanes{}, problem, gpu);
}

// The plan by rules with all fields that the config fixes: of the dataflow that it names, or of the
// first that has the fields, the rules' own before the others.
Plan by_rules(const Config& config, const GpuSpec& gpu) {
  const JsonCursor fields = config.plan_cursor();
  Plan plan = by_rules(config.problem, gpu);
  const auto named = named_dataflow(fields, config.problem);
  if (named && named->index() != plan.index()) plan = of_dataflow(*named, config.problem, gpu);
  bool found = has_fields(plan, fields);
  for_each_dataflow([&](const auto& each) {
    if (found || !is_plan_of(each, config.problem) || !has_fields(each, fields)) return;
    plan = of_dataflow(each, config.problem, gpu);
    found = true;
  });
  return with_overrides(plan, config);
}

// The rules' plan with the last block merging where it may and can.
Plan with_last_block(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                     const ChooseOptions& options) {
  if (!options.last_block) return plan;
  return merged_by_last_block(plan, problem, gpu).value_or(plan);
}

// The cheapest of the space's plans with the config's own fields, of those that check() accepts.
std::optional<Plan> cheapest_with_overrides(const Config& config, const GpuSpec& gpu,
                                            const ChooseOptions& options) {
  CostModel model(config.problem, gpu, options.profiles);
  std::optional<Plan> best;
  double least = 0;
  const SpaceOptions all{.most = 0, .last_block = options.last_block};
  for (const Plan& plan : space(config.problem, gpu, all).plans) {
    if (!has_fields(plan, config.plan_cursor())) continue;
    const Plan changed = with_overrides(plan, config);
    if (!check(changed, config.problem, gpu).ok) continue;
    const std::optional<Cost> cost = model(changed);
    if (!cost || (best && cost->us >= least)) continue;
    best = changed;
    least = cost->us;
  }
  return best;
}

// Of the space's plans of the rules' dataflow with the config's own fields, those that check()
// accepts, the one most like the rules' plan; that plan where there is none.
Plan nearest_with_overrides(const Plan& rules, const Config& config, const GpuSpec& gpu) {
  Plan nearest = rules;
  double least = std::numeric_limits<double>::infinity();
  for (const Plan& plan : space(config.problem, gpu, {.most = 0}).plans) {
    if (plan.index() != rules.index() || !has_fields(plan, config.plan_cursor())) continue;
    const Plan changed = with_overrides(plan, config);
    const double away = distance(changed, rules);
    if (away >= least || !check(changed, config.problem, gpu).ok) continue;
    nearest = changed;
    least = away;
  }
  return nearest;
}

}  // namespace

Plan propose(const Problem& problem, const GpuSpec& gpu, const ChooseOptions& options) {
  require(check(problem), problem);
  if (options.chooser == Chooser::model && is_modelled(problem)) {
    const auto best = cheapest_plan(problem, gpu, options.profiles, options.last_block);
    if (best) return *best;
  }
  return with_last_block(by_rules(problem, gpu), problem, gpu, options);
}

Plan propose(const Config& config, const GpuSpec& gpu, const ChooseOptions& options) {
  if (config.plan.empty()) return propose(config.problem, gpu, options);
  require(check(config.problem), config.problem);
  // Before the search, so that what is wrong with the fields is said.
  const Plan by_rule = by_rules(config, gpu);
  if (options.chooser == Chooser::model && is_modelled(config.problem)) {
    const auto best = cheapest_with_overrides(config, gpu, options);
    if (best) return *best;
  }
  if (!check(by_rule, config.problem, gpu).ok) return nearest_with_overrides(by_rule, config, gpu);
  if (config.plan.contains("combine")) return by_rule;
  return with_last_block(by_rule, config.problem, gpu, options);
}

Plan choose(const Problem& problem, const GpuSpec& gpu, const ChooseOptions& options) {
  const Plan plan = propose(problem, gpu, options);
  require(check(plan, problem, gpu), problem);
  return plan;
}

std::vector<RankedPlan> rank(const Problem& problem, const GpuSpec& gpu,
                             std::span<const HotnessProfile> profiles) {
  CostModel model(problem, gpu, profiles);
  std::vector<RankedPlan> ranked;
  const SpaceOptions all{.most = 0, .last_block = kDefaultLastBlock};
  for (const Plan& plan : space(problem, gpu, all).plans) {
    if (const auto cost = model(plan)) ranked.push_back({plan, *cost});
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.cost.us < b.cost.us; });
  return ranked;
}

}  // namespace vqgen
