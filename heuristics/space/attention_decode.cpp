// The dataflows of attention_decode.
#include <algorithm>
#include <array>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/ops/attention_decode.h"
#include "heuristics/space/candidates.h"

namespace vqgen {
namespace {

using Pair = std::pair<Placement, Placement>;

// Keys and values alike, and where there is a choice one of them shared and the other global.
std::vector<Pair> placement_pairs(const AttentionDecode& op, SpacePlacement allowed) {
  const std::vector<Placement> keys = whole_placements(op.keys, allowed);
  const std::vector<Placement> values = whole_placements(op.values, allowed);
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < keys.size(); ++i) pairs.emplace_back(keys[i], values[i]);
  if (allowed == SpacePlacement::any) {
    pairs.emplace_back(all_shared(op.keys.entries()), all_global());
    pairs.emplace_back(all_global(), all_shared(op.values.entries()));
  }
  return pairs;
}

// The splits for each number of warps an SM, none of them without a tile.
std::vector<int> splits_of(const Candidates& to, const AttentionDecode& op,
                           const AttentionDecodePlan& plan) {
  const std::int64_t head_blocks = ceil_div(op.group(), plan.heads_per_block);
  const std::int64_t blocks = op.shape.kv_heads * head_blocks * op.shape.batch;
  const std::int64_t tiles = ceil_div(op.shape.tokens, plan.tile_tokens);
  std::vector<int> splits;
  for (const int target : kWarpTargets) {
    const std::int64_t wanted = std::int64_t{target} * to.gpu().sms / (plan.threads / 32);
    constexpr std::int64_t kMost = 256;
    splits.push_back(static_cast<int>(
        std::min(kMost, even_splits(tiles, std::max<std::int64_t>(1, wanted / blocks)))));
  }
  return splits;
}

}  // namespace

// A warp takes steps of tile_tokens of its own, so that blocks may be as large as one wave holds.
void add_attention_fragments(Candidates& to, SpacePlacement allowed) {
  const auto& op = std::get<AttentionDecode>(to.problem());
  const auto chosen = choose_attention_fragments(op, to.gpu());
  if (!chosen) return;
  const std::vector<Pair> placements = placement_pairs(op, allowed);
  AttentionDecodePlan plan = *chosen;
  for (const int threads : {64, 128, 256, 512}) {
    plan.threads = threads;
    for (const int tokens : {8, 16, 32}) {
      plan.tile_tokens = tokens;
      for (int words = chosen->code_words; words >= 1; words /= 2) {
        plan.code_words = words;
        for (const int splits : splits_of(to, op, plan)) {
          plan.splits = splits;
          for (const auto& [keys, values] : placements) {
            plan.key_codebook = keys;
            plan.value_codebook = values;
            to.add(plan);
          }
        }
      }
    }
  }
}

void add_attention_lanes(Candidates& to, SpacePlacement allowed) {
  const auto& op = std::get<AttentionDecode>(to.problem());
  const std::vector<Pair> placements = placement_pairs(op, allowed);
  AttentionDecodePlan plan = choose_attention_lanes(op, to.gpu());
  for (const int threads : {64, 128, 256}) {
    plan.threads = threads;
    for (const int tile : {8, 32, 64, 128, 256}) {
      plan.tile_tokens = tile;
      for (const int lanes : {2, 4, 8, 16}) {
        plan.lanes_per_token = lanes;
        // Lanes without a sub-vector, or threads without a token.
        if (lanes > op.shape.head_dim / op.keys.vector_size || threads / lanes > tile) continue;
        for (const int stages : {2, 1}) {
          plan.stages = stages;
          for (const int splits : splits_of(to, op, plan)) {
            plan.splits = splits;
            for (const auto& [keys, values] : placements) {
              plan.key_codebook = keys;
              plan.value_codebook = values;
              to.add(plan);
            }
          }
        }
      }
    }
  }
}

// Key entries are read once a block, from global memory, so that none of these plans has all
// shared.
void add_attention_tables(Candidates& to, SpacePlacement allowed) {
  if (allowed == SpacePlacement::shared) return;
  const auto& op = std::get<AttentionDecode>(to.problem());
  const std::vector<Placement> placements = whole_placements(op.values, allowed);
  const AttentionDecodePlan chosen = choose_attention_tables(op, to.gpu());
  AttentionDecodePlan plan = chosen;
  for (const int threads : {128, 256, 512}) {
    plan.threads = threads;
    for (const int tile : {32, 64, 128, 256}) {
      plan.tile_tokens = tile;
      for (int heads = chosen.heads_per_block; heads >= 1; heads /= 2) {
        plan.heads_per_block = heads;
        for (const int splits : splits_of(to, op, plan)) {
          plan.splits = splits;
          for (const Placement& values : placements) {
            plan.value_codebook = values;
            to.add(plan);
          }
        }
      }
    }
  }
}

// Channel splits: none, those of s* (ops/channel_splits.h), and twice and half as many.
void add_attention_channels(Candidates& to, SpacePlacement allowed) {
  const auto& op = std::get<AttentionDecode>(to.problem());
  const std::vector<Pair> placements = placement_pairs(op, allowed);
  const AttentionDecodePlan chosen = choose_attention_channels(op, to.gpu());
  const auto around = [](int splits) { return std::array{splits, 1, splits * 2, splits / 2}; };
  AttentionDecodePlan plan = chosen;
  for (const int threads : {128, 256}) {
    plan.threads = threads;
    for (const int tile : {32, 64, 128}) {
      plan.tile_tokens = tile;
      for (const int keys_split : around(chosen.key_channel_splits)) {
        plan.key_channel_splits = keys_split;
        for (const int values_split : around(chosen.value_channel_splits)) {
          plan.value_channel_splits = values_split;
          for (const int splits : splits_of(to, op, plan)) {
            plan.splits = splits;
            for (const auto& [keys, values] : placements) {
              plan.key_codebook = keys;
              plan.value_codebook = values;
              to.add(plan);
            }
          }
        }
      }
    }
  }
}

}  // namespace vqgen
