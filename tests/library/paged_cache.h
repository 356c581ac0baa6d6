// The pool of pages of a trial whose config has page_tokens.
#pragma once

#include <vqgen/vqgen.h>

#include "runtime/device_data.h"
#include "runtime/paging.h"
#include "runtime/verify/hard_input.h"
#include "tests/core/support.h"

namespace vqgen::library::test {

// A cache of pages for the config's problem.
inline Json in_pages(Json config, int page_tokens) {
  return edited(config, {{"/shape/page_tokens", std::to_string(page_tokens)}});
}

inline vqgen_page_strides public_strides(const PageStrides& strides) {
  return {4 * strides.page, 4 * strides.head, 4 * strides.token};
}

// Sets the pool's arguments instead of the contiguous rows'. `words` makes the memory of a storage.
template <class Args, class Words>
void set_pages(Args& args, const PagePool& pool, DeviceData& device, const Words& words) {
  const std::uint32_t* const keys = words(pool.keys);
  const std::uint32_t* const values = words(pool.values);
  args.keys.codes = keys + pool.key_strides.begin;
  args.values.codes = (pool.one_tensor() ? keys : values) + pool.value_strides.begin;
  for (vqgen_quantized* each : {&args.keys, &args.values}) {
    each->batch_stride = each->head_stride = 0;
  }
  args.pages = {device.input(pool.table), pool.columns, pool.pages,
                public_strides(pool.key_strides), public_strides(pool.value_strides)};
}

// Sets a cache that is read, in pages if the op has them.
template <class Args>
void read_pages(Args& args, PagePool& pool, const AttentionData& data, int page_tokens,
                DeviceData& device, std::uint64_t seed) {
  if (page_tokens == 0) return;
  pool = make_pool(data.keys, data.values, data.lengths, page_tokens, true, Random(seed));
  set_pages(args, pool, device, [&](const auto& words) { return device.input(words); });
}

}  // namespace vqgen::library::test
