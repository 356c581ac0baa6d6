// Splits a batch into its sequences.
#pragma once

#include <vector>

#include "runtime/execute.h"

namespace vqgen::test {

// Part b of `count` equal parts.
template <class T>
std::vector<T> part_of(const std::vector<T>& all, std::int64_t b, std::int64_t count) {
  const auto each = std::ssize(all) / count;
  return {all.begin() + b * each, all.begin() + (b + 1) * each};
}
inline AttentionOutput part_of(const AttentionOutput& all, std::int64_t b, std::int64_t count) {
  return {part_of(all.out, b, count), part_of(all.lse, b, count)};
}

// Sequence b, alone, of a batch with one query token each.
inline AttentionData sequence_of(const AttentionData& data, std::int64_t b) {
  AttentionData one = data;
  const auto take = [&](auto& member) { member = part_of(member, b, data.batch); };
  one.batch = one.keys.batch = one.values.batch = 1;
  take(one.keys.codes);
  take(one.values.codes);
  take(one.queries);
  take(one.lengths);
  take(one.recent_counts);
  take(one.sinks);
  take(one.raw_keys);
  take(one.raw_values);
  return one;
}

}  // namespace vqgen::test
