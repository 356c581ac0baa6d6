#include "heuristics/choose.h"

#include "core/error.h"
#include "heuristics/ops/attention_decode.h"
#include "heuristics/ops/gemv.h"

namespace vqgen {
namespace {

Plan propose_for(const AttentionDecode& op, const GpuSpec& gpu) {
  return choose_attention_decode(op, gpu);
}
Plan propose_for(const Gemv& op, const GpuSpec& gpu) { return choose_gemv(op, gpu); }

void require(const Verdict& verdict, const Problem& problem) {
  if (!verdict.ok) throw Error(ErrorKind::infeasible, op_name(problem) + ": " + verdict.reason);
}

}  // namespace

Plan propose(const Problem& problem, const GpuSpec& gpu) {
  require(check(problem), problem);
  return std::visit([&](const auto& op) { return propose_for(op, gpu); }, problem);
}

Plan choose(const Problem& problem, const GpuSpec& gpu) {
  const Plan plan = propose(problem, gpu);
  require(check(plan, problem, gpu), problem);
  return plan;
}

}  // namespace vqgen
