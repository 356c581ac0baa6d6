#include "heuristics/placement.h"

#include <array>
#include <utility>

namespace vqgen {

bool place_codebooks(AttentionDecodePlan& plan, const Problem& problem, const GpuSpec& gpu) {
  constexpr std::array kOrder{
      std::pair{Level::shared, Level::shared}, std::pair{Level::shared, Level::global},
      std::pair{Level::global, Level::shared}, std::pair{Level::global, Level::global}};
  for (const auto& [keys, values] : kOrder) {
    plan.key_codebook = keys;
    plan.value_codebook = values;
    if (check(plan, problem, gpu).ok) return true;
  }
  return false;
}

void place_codebooks(GemvPlan& plan, const Problem& problem, const GpuSpec& gpu) {
  constexpr int kShortestChunk = 64;  // below it the barriers outweigh the staging
  const int longest = plan.chunk_columns;
  plan.codebook = Level::shared;
  for (; plan.chunk_columns >= kShortestChunk; plan.chunk_columns /= 2) {
    if (check(plan, problem, gpu).ok) return;
  }
  plan.chunk_columns = longest;
  plan.codebook = Level::global;
}

}  // namespace vqgen
