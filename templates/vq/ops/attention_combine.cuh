// attention_combine: the partial results of a sequence's splits become one by a kernel of its own.
// A block a (query head, sequence), a thread a channel.
#pragma once

#include <vq/ops/attention_splits.cuh>

namespace vq {

template <class Plan>
VQ_DEVICE void attention_combine(const AttentionDecodeArgs& args) {
  const i64 head = i64{block_y()} * Plan::config().query_heads + block_x();
  AttentionSplits<Plan>::merge(args, head, thread_index(), LoadGlobal());
}

}  // namespace vq
