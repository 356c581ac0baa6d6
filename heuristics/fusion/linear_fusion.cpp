#include "heuristics/fusion/linear_fusion.h"

#include "heuristics/fusion/exchange.h"

namespace vqgen {

LinearFusion fusion_by_shuffles(int vector_size, int threshold) {
  const fusion::Exchange product = fusion::exchange_of(LinearFusion::registers, vector_size, 4);
  return std::ssize(product.shuffles) < threshold ? LinearFusion::registers : LinearFusion::shared;
}

Plan with_paper_fusion(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  const auto* fragments = std::get_if<LinearFragments>(&plan);
  if (fragments == nullptr) return plan;
  LinearFragments fused = *fragments;
  for (const LinearFusion fusion :
       {fusion_by_shuffles(as_linear(problem)->weights.vector_size), LinearFusion::shared}) {
    fused.fusion = fusion;
    fused.codebook = all_global();
    const bool fine = check(fused, problem, gpu).ok;
    fused.codebook = fragments->codebook;
    if (fine) return fused;
  }
  return plan;
}

}  // namespace vqgen
