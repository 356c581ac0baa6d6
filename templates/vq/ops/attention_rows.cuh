// The format of keys and of values as a block of attention_decode reads them (cache_rows.cuh).
#pragma once

#include <vq/layout/attention_tiles.h>
#include <vq/ops/attention_work.cuh>
#include <vq/ops/cache_rows.cuh>

namespace vq {

// The format that Codebook (codebook.cuh) takes.
template <class Plan, AttentionPart kPart, bool kKeys>
struct CacheFormat {
  static constexpr auto kConfig = Plan::config();
  static constexpr int kShare = kKeys ? key_channels(kConfig) : value_channels(kConfig);
  VQ_HD static constexpr FormatConfig config() { return kKeys ? kConfig.keys : kConfig.values; }
  VQ_HD static constexpr CodebookShared shared() {
    return kKeys ? shared_layout(kConfig, kPart).keys : shared_layout(kConfig, kPart).values;
  }
};

}  // namespace vq
