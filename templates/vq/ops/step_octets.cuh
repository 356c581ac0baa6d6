// The octet of x that lane `c` of a product's four looks up in a step of 32 columns, steps counted
// from the first column; zeros past the last. For kernels that lay x out before products.
#pragma once

#include <vq/layout/warpgroup_steps.h>
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

// A row of a step in its shared-memory layout, transposed: k octet p is word p of all four octets.
VQ_DEVICE U32x4 k_octet(const U32x4 (&octets)[kStepOctets], int p) {
  return {word_of(octets[0], p), word_of(octets[1], p), word_of(octets[2], p),
          word_of(octets[3], p)};
}

}  // namespace vq
