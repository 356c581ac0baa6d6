#include "heuristics/check.h"

#include "heuristics/kernels/slice.h"

namespace vqgen {

Verdict check(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  if (!is_plan_of(plan, problem)) {
    return {false, "the plan is for another op than " + op_name(problem)};
  }
  return visit_plan(plan, problem,
                    [&](const auto& each, const auto& op) { return check(each, op, gpu); });
}

}  // namespace vqgen
