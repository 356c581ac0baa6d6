// Profiles for tests of placement, as match_access_counts() gives them, without parts.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>

#include "core/access/access_counts.h"
#include "core/problem/problem.h"

namespace vqgen {

// A profile with equal counts in each codebook.
inline AccessCounts profile_with(Operand operand, const VqFormat& format, std::int64_t units,
                                 const std::vector<std::int64_t>& counts) {
  AccessCounts profile;
  profile.item = "item";
  profile.operand = operand;
  profile.format = format;
  profile.units = units;
  profile.num_codebooks = format.num_codebooks;
  profile.entries = format.entries();
  for (std::int64_t i = 0; i < units * format.num_codebooks; ++i) {
    profile.counts.insert(profile.counts.end(), counts.begin(), counts.end());
  }
  return profile;
}

// Accesses of entry r in proportion to 1 / (r + 1)^skew, hot-first or in any order.
inline std::vector<std::int64_t> zipf_counts(int entries, double skew, bool ordered,
                                             std::uint64_t seed = 1) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < entries; ++rank) {
    counts.push_back(static_cast<std::int64_t>(1e6 / std::pow(rank + 1, skew)));
  }
  if (!ordered) std::shuffle(counts.begin(), counts.end(), std::mt19937_64(seed));
  return counts;
}

// Random profiles of the problem's operands: skew and order vary, and some profiles are missing or
// all zero.
inline std::vector<AccessCounts> random_profiles(const Problem& problem, std::mt19937_64& random) {
  std::vector<AccessCounts> profiles;
  const auto add = [&](Operand operand, const VqFormat& format, std::int64_t units) {
    if (random() % 8 == 0) return;
    const double skew = static_cast<double>(random() % 24) / 8.0;
    profiles.push_back(profile_with(
        operand, format, units, zipf_counts(format.entries(), skew, random() % 4 != 0, random())));
    if (random() % 8 == 0)
      std::fill(profiles.back().counts.begin(), profiles.back().counts.end(), 0);
  };
  const auto add_cache = [&](const auto& op) {
    const auto& shape = op.shape;
    add(Operand::keys, op.keys, kv_units(op.keys, shape.kv_heads, shape.head_dim));
    add(Operand::values, op.values, kv_units(op.values, shape.kv_heads, shape.head_dim));
  };
  if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
    add_cache(*op);
  } else if (const auto* decode = std::get_if<KvDequantize>(&problem)) {
    add_cache(*decode);
  } else if (const auto* rows = std::get_if<WeightDequantize>(&problem)) {
    add(Operand::weights, rows->weights,
        weight_units(rows->weights, rows->shape.out_features, rows->shape.in_features));
  } else if (as_linear(problem) != nullptr) {  // kv_append and attention_merge have none
    const Linear& op_ = *as_linear(problem);
    add(Operand::weights, op_.weights,
        weight_units(op_.weights, op_.shape.out_features, op_.shape.in_features));
  }
  return profiles;
}

}  // namespace vqgen
