#include "heuristics/choose.h"

#include "core/error.h"
#include "heuristics/ops/attention_decode.h"
#include "heuristics/ops/linear.h"

namespace vqgen {
namespace {

void require(const Verdict& verdict, const Problem& problem) {
  if (!verdict.ok) throw Error(ErrorKind::infeasible, op_name(problem) + ": " + verdict.reason);
}

}  // namespace

Plan propose(const Problem& problem, const GpuSpec& gpu) {
  require(check(problem), problem);
  if (const auto* attention = std::get_if<AttentionDecode>(&problem)) {
    return choose_attention_decode(*attention, gpu);
  }
  return choose_linear(problem, gpu);
}

Plan choose(const Problem& problem, const GpuSpec& gpu) {
  const Plan plan = propose(problem, gpu);
  require(check(plan, problem, gpu), problem);
  return plan;
}

}  // namespace vqgen
