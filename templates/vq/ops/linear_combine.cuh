// The sums of the splits become one by a kernel of its own. A thread an element of y.
#pragma once

#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
VQ_DEVICE void linear_combine(const LinearArgs& args) {
  using Work = LinearWork<Plan>;
  const i64 element = i64{block_x()} * kCombineThreads + thread_index();
  if (element >= Work::kRows * Work::kOutFeatures) return;
  Work::merge(args, static_cast<int>(element / Work::kOutFeatures), element % Work::kOutFeatures,
              LoadGlobal());
}

}  // namespace vq
