// The shape of a launch of attention by channels: a kernel makes scores, another sums values, and
// the blocks of each share the channels of a head.
#pragma once

#include <vq/kernels/attention_channels/plan.h>
#include <vq/layout/attention_tiles.h>

namespace vq {

VQ_HD constexpr CallShape call_shape(const AttentionConfig<AttentionChannels>& c, i64 batch,
                                     i64 tokens) {
  CallShape shape{};
  const i64 blocks = i64{c.kv_heads} * head_blocks(c);
  shape.add({"attention_channel_scores", "scores", c.splits, blocks * c.key_channel_splits, batch,
             c.threads, shared_layout(c, AttentionPart::kScores).total, false, true});
  shape.add({"attention_channel_values", "values", c.splits, blocks * c.value_channel_splits, batch,
             c.threads, shared_layout(c, AttentionPart::kValues).total, false, true});
  // One fp32 score of each share, token and query head.
  const i64 scores = batch * c.query_heads * c.key_channel_splits * tokens * 4;
  add_attention_workspace(c, batch, ceil_div(scores, i64{16}) * 16, shape);
  shape.code_bytes = code_alignment(c.keys, c.values);
  shape.element_bytes = 2;
  return shape;
}

}  // namespace vq
