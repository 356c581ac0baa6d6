#include "heuristics/choose.h"

#include "core/error.h"
#include "heuristics/ops/attention_decode.h"
#include "heuristics/ops/linear.h"

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
  return choose_linear(problem, gpu, std::get<LinearPlan>(wanted).dataflow);
}

bool same_dataflow(const Plan& a, const Plan& b) {
  return std::visit(
      [&]<class OpPlan>(const OpPlan& plan) {
        return plan.dataflow == std::get<OpPlan>(b).dataflow;
      },
      a);
}

}  // namespace

Plan propose(const Problem& problem, const GpuSpec& gpu) {
  require(check(problem), problem);
  if (const auto* attention = std::get_if<AttentionDecode>(&problem)) {
    return choose_attention_decode(*attention, gpu);
  }
  return choose_linear(problem, gpu);
}

Plan propose(const Problem& problem, const GpuSpec& gpu, std::span<const JsonCursor> fixed) {
  const auto with_fixed = [&](Plan plan) {
    for (const JsonCursor& fields : fixed) {
      std::visit([&](auto& each) { read_fields(fields, each, /*partial=*/true); }, plan);
    }
    return plan;
  };
  const Plan plan = propose(problem, gpu);
  const Plan wanted = with_fixed(plan);
  if (same_dataflow(wanted, plan)) return wanted;
  return with_fixed(propose_as(wanted, problem, gpu));
}

Plan choose(const Problem& problem, const GpuSpec& gpu) {
  const Plan plan = propose(problem, gpu);
  require(check(plan, problem, gpu), problem);
  return plan;
}

}  // namespace vqgen
