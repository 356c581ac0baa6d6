// The octet of x that lane `c` of a product's four looks up in a step of 32 columns, steps counted
// from the first column; zeros past the last. For kernels that lay x out before products.
#pragma once

#include <vq/layout/linear_runs.h>
#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
VQ_DEVICE U32x4 step_octet(const LinearArgs& args, int row, int step, int c) {
  using Work = LinearWork<Plan>;
  constexpr auto kConfig = Plan::config();
  constexpr int kSteps = run_steps(kConfig);
  const i64 column = i64{step / kSteps} * run_columns(kConfig) +
                     octet_column(4, run_octets(kConfig), step % kSteps, c);
  return column < Work::kInFeatures ? Work::x_octet(args, row, column) : U32x4{};
}

}  // namespace vq
