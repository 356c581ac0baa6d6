#include "heuristics/placement.h"

#include <array>
#include <utility>

namespace vqgen {

bool place_codebooks(AttentionDecodePlan& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  constexpr std::array kOrder{std::pair{true, true}, std::pair{true, false}, std::pair{false, true},
                              std::pair{false, false}};
  for (const auto& [keys, values] : kOrder) {
    plan.key_codebook = keys ? all_shared(op.keys.entries()) : all_global();
    plan.value_codebook = values ? all_shared(op.values.entries()) : all_global();
    if (check(plan, op, gpu).ok) return true;
  }
  return false;
}

void place_codebooks(LinearPlan& plan, const Problem& problem, const GpuSpec& gpu) {
  constexpr int kShortestChunk = 64;  // below it the barriers outweigh the staging
  const int longest = plan.chunk_columns;
  plan.codebook = all_shared(as_linear(problem)->weights.entries());
  for (; plan.chunk_columns >= kShortestChunk; plan.chunk_columns /= 2) {
    if (check(plan, problem, gpu).ok) return;
  }
  plan.chunk_columns = longest;
  plan.codebook = all_global();
}

}  // namespace vqgen
