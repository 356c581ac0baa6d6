#include "core/plan/main_kernel.h"

namespace vqgen {

std::size_t main_kernel(const Plan& plan, const Problem& problem) {
  const vq::CallShape shape = call_shape(plan, problem);
  for (int i = 0; i < shape.count; ++i) {
    if (shape.launches[i].looks_up) return static_cast<std::size_t>(i);
  }
  return 0;
}

}  // namespace vqgen
