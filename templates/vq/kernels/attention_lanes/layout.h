// The shape of a launch of attention by lanes.
#pragma once

#include <vq/kernels/attention_lanes/plan.h>
#include <vq/layout/attention_tiles.h>

namespace vq {

VQ_HD constexpr CallShape call_shape(const AttentionConfig<AttentionLanes>& c, i64 batch, i64) {
  return attention_shape(c, batch, "attention_lanes", shared_layout(c, AttentionPart::kWhole).total,
                         false);
}

}  // namespace vq
