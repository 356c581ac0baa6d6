#include "heuristics/choose.h"

#include "core/error.h"
#include "heuristics/ops/attention_decode.h"
#include "heuristics/ops/gemv.h"

namespace vqgen {
namespace {

Plan choose_for(const AttentionDecode& op, const GpuSpec& gpu) {
  return choose_attention_decode(op, gpu);
}
Plan choose_for(const Gemv& op, const GpuSpec& gpu) { return choose_gemv(op, gpu); }

void require(const Verdict& verdict, const Problem& problem) {
  if (!verdict.ok) throw Error(ErrorKind::infeasible, op_name(problem) + ": " + verdict.reason);
}

}  // namespace

Plan choose(const Problem& problem, const GpuSpec& gpu) {
  require(check(problem), problem);
  const Plan plan = std::visit([&](const auto& op) { return choose_for(op, gpu); }, problem);
  require(check(plan, problem, gpu), problem);
  return plan;
}

}  // namespace vqgen
