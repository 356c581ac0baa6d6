#include "core/check.h"

#include "core/check/judge.h"
#include "core/plan_name.h"

namespace vqgen {
namespace {

void judge_format(Judge& judge, const VqFormat& format, const char* operand) {
  const int v = format.vector_size;
  judge.require(v == 2 || v == 4 || v == 8, "{}: vector_size {} is not built yet; use 2, 4 or 8",
                operand, v);
  judge.require(format.entry_type == EntryType::element || v == 4 || v == 8,
                "{}: int8 entries of vector_size {} are not built yet; use 4 or 8", operand, v);
  judge.require(format.residuals <= 4, "{}: {} residual stages are not built yet; use 1 to 4",
                operand, format.residuals);
}

void judge_problem(Judge& judge, const AttentionDecode& op) {
  judge_format(judge, op.keys, "keys");
  judge_format(judge, op.values, "values");
  const int d = op.shape.head_dim;
  judge.require(d == 64 || d == 96 || d == 128 || d == 256,
                "head_dim {} is not built yet; use 64, 96, 128 or 256", d);
}

void judge_problem(Judge& judge, const KvAppend& op) {
  judge_format(judge, op.keys, "keys");
  judge_format(judge, op.values, "values");
  const int d = op.shape.head_dim;
  judge.require(d == 64 || d == 80 || d == 96 || d == 128 || d == 256,
                "head_dim {} is not built yet; use 64, 80, 96, 128 or 256", d);
}

void judge_problem(Judge& judge, const Linear& op) { judge_format(judge, op.weights, "weights"); }

// The range that each field declares: plans come from code too, not only from JSON.
template <HasFields T>
void judge_ranges(Judge& judge, const T& plan) {
  for_each_field<T>([&]<class Member>(const Field<T, Member>& field) {
    if constexpr (std::is_same_v<Member, int>) {
      const double value = plan.*field.member;
      judge.require(value >= field.rule.min && value <= field.rule.max,
                    "{} {} is not within {:.0f}..{:.0f}", field.name, value, field.rule.min,
                    field.rule.max);
    } else if constexpr (HasFields<Member>) {
      judge_ranges(judge, plan.*field.member);
    }
  });
}

}  // namespace

Verdict check(const Problem& problem) {
  Judge judge;
  std::visit([&](const auto& op) { judge_problem(judge, op); }, problem);
  return judge.verdict();
}

Verdict check(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  Judge judge;
  judge.require(is_plan_of(plan, problem), "the plan is for another op than {}", op_name(problem));
  if (judge.ok()) std::visit([&](const auto& op) { judge_problem(judge, op); }, problem);
  std::visit([&](const auto& each) { judge_ranges(judge, each); }, plan);
  if (!judge.ok()) return judge.verdict();
  if (const auto* attention = std::get_if<AttentionDecode>(&problem)) {
    judge_plan(judge, std::get<AttentionDecodePlan>(plan), *attention, gpu);
  } else if (const auto* append = std::get_if<KvAppend>(&problem)) {
    judge_plan(judge, std::get<KvAppendPlan>(plan), *append, gpu);
  } else {
    judge_plan(judge, std::get<LinearPlan>(plan), *as_linear(problem), gpu);
  }
  return judge.verdict();
}

}  // namespace vqgen
