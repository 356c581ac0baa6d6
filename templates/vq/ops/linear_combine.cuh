// The sums of the splits become one, in the order of the splits. A thread an element of y.
#pragma once

#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
VQ_DEVICE void linear_combine(const LinearArgs& args) {
  using Work = LinearWork<Plan>;
  constexpr i64 kElements = Work::kRows * Work::kOutFeatures;
  const i64 element = i64{block_x()} * kCombineThreads + thread_index();
  if (element >= kElements) return;
  float sum = 0.0f;
  for (int split = 0; split < Plan::config().splits; ++split) {
    sum += load_global(args.partials + split * kElements + element);
  }
  Work::finish(args, static_cast<int>(element / Work::kOutFeatures), element % Work::kOutFeatures,
               sum);
}

}  // namespace vq
