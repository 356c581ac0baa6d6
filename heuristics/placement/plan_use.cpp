#include "heuristics/placement/plan_use.h"

#include "heuristics/kernels/slice.h"

namespace vqgen {

double stored_code_bytes(std::int64_t rows, std::int64_t columns, const VqFormat& format) {
  return 4.0 * static_cast<double>(rows) *
         static_cast<double>(
             vq::row_words(columns, format.vector_size, format.residuals, format.index_bits));
}

PlanUse plan_use(const Plan& plan, const Problem& problem) {
  return visit_plan(plan, problem, []<class P>(const P& each, const OpOf<P>& op) {
    return Slice<P>::use(each, op);
  });
}

}  // namespace vqgen
