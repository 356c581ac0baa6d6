#include "heuristics/check.h"

#include "heuristics/kernels/slice.h"

namespace vqgen {

Verdict check(const Problem& problem) {
  Judge judge;
  std::visit([&](const auto& op) { judge_problem(judge, op); }, problem);
  return judge.verdict();
}

Verdict check(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  if (!is_plan_of(plan, problem)) {
    return {false, "the plan is for another op than " + op_name(problem)};
  }
  return visit_plan(plan, problem,
                    [&](const auto& each, const auto& op) { return check(each, op, gpu); });
}

}  // namespace vqgen
