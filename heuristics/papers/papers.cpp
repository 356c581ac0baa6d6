#include "heuristics/papers/papers.h"

#include "heuristics/fusion/exchange.h"
#include "heuristics/kernels/scalar_forms.h"

namespace vqgen {

void add_paper_plans(Candidates& to) {
  const ScalarMatrix* const op = as_scalar(to.problem);
  if (op == nullptr) return;
  add_form(to, *op, ScalarForm::naive, 1, 1);
  add_form(to, *op, ScalarForm::tiled, 1, 1);
  for (const int tokens : {2, 4, 8, 16}) add_form(to, *op, ScalarForm::coarsened, 1, tokens);
}

LinearFusion fusion_by_shuffles(int vector_size, int threshold) {
  const fusion::Exchange product = fusion::exchange_of(LinearFusion::registers, vector_size, 4);
  return std::ssize(product.shuffles) < threshold ? LinearFusion::registers : LinearFusion::shared;
}

Plan with_paper_fusion(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  const auto* fragments = std::get_if<LinearMma>(&plan);
  if (fragments == nullptr) return plan;
  LinearMma fused = *fragments;
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
