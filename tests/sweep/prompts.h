// A prompt appended to an empty cache, whole or in parts, and the attention over it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/ops/kv_append/reference.h"
#include "tests/sweep/harness.h"

namespace vqgen::test {

// New tokens for sequences of `tokens` each, from their beginning.
inline AppendData prompt_of(KvAppend op, int tokens, std::uint64_t seed) {
  op.shape.new_tokens = tokens;
  AppendData data = make_append_data(op, {.seed = seed});
  data.positions.assign(static_cast<std::size_t>(data.batch), 0);
  return data;
}

// Puts a call's result into `cache`.
inline void take_cache(auto& cache, const AppendResult& result) {
  cache.keys.codes = result.key_codes;
  cache.values.codes = result.value_codes;
  cache.raw_keys = result.raw_keys;
  cache.raw_values = result.raw_values;
}

// Appends tokens [first, first + count) of a prompt to `step`'s cache by a kernel that takes
// step.new_tokens per call; judges each call. The other rows of new tokens are NaN.
inline AppendResult append_part(Kernel& kernel, const AppendData& all, int first, int count,
                                AppendData& step) {
  const std::int64_t token = all.keys.heads * all.keys.columns;  // elements
  step.positions.assign(static_cast<std::size_t>(all.batch), first);
  step.counts.assign(static_cast<std::size_t>(all.batch), count);
  const auto take = [&](const std::vector<std::uint16_t>& from, std::vector<std::uint16_t>& to) {
    to.assign(static_cast<std::size_t>(all.batch * step.new_tokens * token), 0x7fff);
    for (std::int64_t b = 0; b < all.batch; ++b) {
      std::copy_n(from.begin() + (b * all.new_tokens + first) * token, count * token,
                  to.begin() + b * step.new_tokens * token);
    }
  };
  take(all.new_keys, step.new_keys);
  take(all.new_values, step.new_values);
  AppendResult result = kernel.run(step);
  EXPECT_TRUE(judge_append(step, result).ok) << judge_append(step, result).why;
  take_cache(step, result);
  return result;
}

// Appends a whole prompt, `part` tokens at a time; the last part may be shorter.
inline AppendResult append_in_parts(Kernel&& kernel, const AppendData& all, int part) {
  AppendData step = all;
  step.new_tokens = part;
  AppendResult cache;
  const auto tokens = static_cast<int>(all.new_tokens);
  for (int first = 0; first < tokens; first += part) {
    cache = append_part(kernel, all, first, std::min(part, tokens - first), step);
  }
  return cache;
}

inline void expect_same(const AppendResult& a, const AppendResult& b) {
  EXPECT_EQ(a.key_codes, b.key_codes);
  EXPECT_EQ(a.value_codes, b.value_codes);
  EXPECT_EQ(a.raw_keys, b.raw_keys);
  EXPECT_EQ(a.raw_values, b.raw_values);
}

// The attention that reads the cache to which `op` appends.
inline AttentionDecode reader_of(const KvAppend& op, int query_heads) {
  AttentionDecode reader;
  reader.dtype = op.dtype;
  reader.shape = {.batch = op.shape.batch,
                  .query_heads = query_heads,
                  .kv_heads = op.shape.kv_heads,
                  .head_dim = op.shape.head_dim,
                  .tokens = op.shape.tokens,
                  .recent_tokens = op.shape.recent_tokens,
                  .sinks = op.shape.sinks,
                  .page_tokens = op.shape.page_tokens,
                  .flush_block = op.shape.flush_block};
  reader.keys = op.keys;
  reader.values = op.values;
  return reader;
}

}  // namespace vqgen::test
