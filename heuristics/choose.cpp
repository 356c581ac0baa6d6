#include "heuristics/choose.h"

#include <algorithm>

#include "core/error.h"
#include "heuristics/cheapest.h"
#include "heuristics/ops/attention_decode.h"
#include "heuristics/ops/kv_append.h"
#include "heuristics/ops/linear.h"
#include "heuristics/space.h"

namespace vqgen {
namespace {

void require(const Verdict& verdict, const Problem& problem) {
  if (!verdict.ok) throw Error(ErrorKind::infeasible, op_name(problem) + ": " + verdict.reason);
}

// The plan of one dataflow; check() may refuse it.
Plan propose_as(const Plan& wanted, const Problem& problem, const GpuSpec& gpu) {
  if (const auto* attention = std::get_if<AttentionDecode>(&problem)) {
    return choose_attention(*attention, gpu, std::get<AttentionDecodePlan>(wanted).dataflow);
  }
  if (const auto* append = std::get_if<KvAppend>(&problem)) return choose_kv_append(*append, gpu);
  return choose_linear(problem, gpu, std::get<LinearPlan>(wanted).dataflow);
}

bool same_dataflow(const Plan& a, const Plan& b) {
  return std::visit(
      [&]<class OpPlan>(const OpPlan& plan) {
        return plan.dataflow == std::get<OpPlan>(b).dataflow;
      },
      a);
}

Plan by_rules(const Problem& problem, const GpuSpec& gpu) {
  if (const auto* attention = std::get_if<AttentionDecode>(&problem)) {
    return choose_attention_decode(*attention, gpu);
  }
  if (const auto* append = std::get_if<KvAppend>(&problem)) return choose_kv_append(*append, gpu);
  return choose_linear(problem, gpu);
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
    const Plan changed = with_overrides(plan, config);
    if (!check(changed, config.problem, gpu).ok) continue;
    const std::optional<Cost> cost = model(changed);
    if (!cost || (best && cost->us >= least)) continue;
    best = changed;
    least = cost->us;
  }
  return best;
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
  // Read once before the search, so that what is wrong with the fields is said.
  const Plan rules = by_rules(config.problem, gpu);
  Plan by_rule = with_overrides(rules, config);
  if (!same_dataflow(by_rule, rules)) {  // whose other fields are what that dataflow wants
    by_rule = with_overrides(propose_as(by_rule, config.problem, gpu), config);
  }
  if (options.chooser == Chooser::model && is_modelled(config.problem)) {
    const auto best = cheapest_with_overrides(config, gpu, options);
    if (best) return *best;
  }
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
