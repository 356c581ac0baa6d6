// The format of keys and of values as a block of attention_decode reads them (cache_rows.cuh).
#pragma once

#include <vq/layout/attention_tiles.h>
#include <vq/ops/attention_work.cuh>
#include <vq/ops/cache_rows.cuh>

namespace vq {

// The format that Codebook (codebook.cuh) takes: the keys', the values', or that of their part
// kNumber, which one block serves whole.
template <class Plan, AttentionPart kPart, bool kKeys, int kNumber = 0>
struct CacheFormat {
  static constexpr auto kConfig = Plan::config();
  VQ_HD static constexpr FormatConfig config() {
    return kKeys ? key_format(kConfig, kNumber) : value_format(kConfig, kNumber);
  }
  static constexpr int kShare = config().part.in_parts ? config().part.channels
                                : kKeys                ? key_channels(kConfig)
                                                       : value_channels(kConfig);
  VQ_HD static constexpr CodebookShared shared() {
    return kKeys ? shared_layout(kConfig, kPart).keys[kNumber]
                 : shared_layout(kConfig, kPart).values[kNumber];
  }
};

}  // namespace vq
