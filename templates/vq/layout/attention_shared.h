// The shared memory of a block of attention_decode, whatever its dataflow.
#pragma once

#include <vq/layout/attention_fragments.h>

namespace vq {

VQ_HD constexpr i64 block_shared_bytes(const AttentionDecodeConfig& c) {
  if (c.dataflow == AttentionDataflow::kFragments) return fragments_layout(c).total;
  return shared_layout(c).total;
}

}  // namespace vq
