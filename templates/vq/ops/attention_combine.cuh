// attention_combine: the partial results of a sequence's splits become one, in the order of the
// splits. A block a (query head, sequence), a thread a channel.
#pragma once

#include <vq/ops/attention_work.cuh>

namespace vq {

template <class Plan>
VQ_DEVICE void attention_combine(const AttentionDecodeArgs& args) {
  constexpr int kHeadDim = Plan::config().head_dim;
  constexpr int kSplits = Plan::config().splits;
  const i64 head = i64{block_y()} * Plan::config().query_heads + block_x();
  const float* partials = args.partials + head * kSplits * (kHeadDim + 2);

  float highest = -infinity();
  for (int split = 0; split < kSplits; ++split) {
    const float other = load_global(partials + split * (kHeadDim + 2) + kHeadDim);
    highest = other > highest ? other : highest;
  }
  float total = 0.0f;
  float value = 0.0f;
  const int channel = thread_index();
  for (int split = 0; split < kSplits; ++split) {
    const float* partial = partials + split * (kHeadDim + 2);
    const float sum = load_global(partial + kHeadDim + 1);
    if (!(sum > 0.0f)) continue;  // an empty split, whose maximum is -inf
    const float weight = exp2_approx(load_global(partial + kHeadDim) - highest);
    total += weight * sum;
    value += weight * load_global(partial + channel);
  }
  store_global(args.out + head * kHeadDim + channel,
               from_float<Plan::config().element>(total > 0.0f ? value / total : 0.0f));
  if (channel == 0) {
    store_global(args.lse + head, AttentionWork<Plan>::log_sum_exp(highest, total));
  }
}

}  // namespace vq
