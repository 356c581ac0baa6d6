// Attention by channels: shares of the channels split by the traffic of codebooks and partial
// scores (channel_splits.h).
#include <array>

#include "heuristics/kernels/attention.h"
#include "heuristics/kernels/channel_splits.h"

namespace vqgen {
namespace {

// One operand: a share is whole sub-vectors, and lies within a codebook's channels or holds whole
// ones.
void judge_shares(Judge& judge, const vq::FormatConfig& format, int head_dim, int splits,
                  const char* operand) {
  judge.require(head_dim % splits == 0 && head_dim / splits % format.vector_size == 0,
                "{}_channel_splits {} does not split the {} sub-vectors of a head evenly", operand,
                splits, head_dim / format.vector_size);
  if (!judge.ok()) return;
  const int channels = head_dim / splits;
  judge.require(channels % format.unit_elements == 0 || format.unit_elements % channels == 0,
                "{}_channel_splits {}: {} channels neither divide nor are a multiple of the {} of "
                "a codebook",
                operand, splits, channels, format.unit_elements);
}

// The values of `splits` with which check() accepts the plan, its codebooks in global memory.
std::vector<int> feasible_splits(AttentionChannels plan, int AttentionChannels::*splits,
                                 const AttentionDecode& op, const GpuSpec& gpu) {
  std::vector<int> feasible;
  for (int s = 1; s <= op.shape.head_dim / 2; ++s) {
    plan.*splits = s;
    if (op.shape.head_dim % s == 0 && check(plan, op, gpu).ok) feasible.push_back(s);
  }
  if (feasible.empty()) feasible.push_back(1);
  return feasible;
}

}  // namespace

template <>
void Slice<AttentionChannels>::judge(Judge& judge, const AttentionChannels& plan,
                                     const AttentionDecode& op, const GpuSpec& gpu) {
  const auto config = configured(plan, op);
  judge_shares(judge, config.keys, config.head_dim, plan.key_channel_splits, "key");
  judge_shares(judge, config.values, config.head_dim, plan.value_channel_splits, "value");
  // Of sequences that share a cache they may pass 64 bits.
  const double scores = 4.0 * op.shape.batch * op.shape.query_heads * plan.key_channel_splits *
                        static_cast<double>(op.shape.tokens);
  judge.require(scores <= static_cast<double>(gpu.memory_bytes),
                "partial scores of {} tokens, {} query heads and {} sequences take {:.3g} bytes, "
                "{} has {}; use another dataflow",
                op.shape.tokens, op.shape.query_heads, op.shape.batch, scores, gpu.name,
                gpu.memory_bytes);
  if (!judge.ok()) return;
  judge_lanes(judge, plan, op);
  judge_attention(judge, plan, op, gpu);
}

template <>
AttentionChannels Slice<AttentionChannels>::choose(const AttentionDecode& op, const GpuSpec& gpu) {
  using P = AttentionChannels;
  P plan;
  plan.heads_per_block = even_heads(op);
  const std::int64_t blocks = std::max(two_waves(gpu), head_blocks(op, plan));
  plan.key_channel_splits = round_split(key_split_traffic(op, blocks),
                                        feasible_splits(plan, &P::key_channel_splits, op, gpu));
  plan.value_channel_splits = round_split(value_split_traffic(op, blocks, plan.key_channel_splits),
                                          feasible_splits(plan, &P::value_channel_splits, op, gpu));
  plan.lanes_per_token =
      lanes_for(std::max(op.shape.head_dim / plan.key_channel_splits / op.keys.vector_size, 1));
  fit_tile(plan, op, gpu);
  plan.splits = choose_splits(op, plan, two_waves(gpu),
                              std::min(plan.key_channel_splits, plan.value_channel_splits));
  return plan;
}

// Channel splits: none, those of s* (channel_splits.h), and twice and half as many.
template <>
void Slice<AttentionChannels>::add_candidates(Candidates& to, const AttentionDecode& op,
                                              SpacePlacement allowed) {
  const std::vector<PlacementPair> placements = placement_pairs(op, allowed);
  const AttentionChannels chosen = choose(op, to.gpu());
  const auto around = [](int splits) { return std::array{splits, 1, splits * 2, splits / 2}; };
  AttentionChannels plan = chosen;
  for (const int threads : {128, 256}) {
    plan.threads = threads;
    for (const int tile : {32, 64, 128}) {
      plan.tile_tokens = tile;
      for (const int keys_split : around(chosen.key_channel_splits)) {
        plan.key_channel_splits = keys_split;
        for (const int values_split : around(chosen.value_channel_splits)) {
          plan.value_channel_splits = values_split;
          for (const int splits : splits_of(to, op, plan, tile)) {
            plan.splits = splits;
            add_placed(to, plan, placements);
          }
        }
      }
    }
  }
}

template <>
PlanUse Slice<AttentionChannels>::use(const AttentionChannels& plan, const AttentionDecode& op) {
  return attention_use(plan, op);
}

template <>
void Slice<AttentionChannels>::count(BlockWork& to, const AttentionChannels& plan,
                                     const AttentionDecode& op, const PlanUse& use,
                                     ConflictTable& conflicts) {
  count_lanes(to, plan, op, use, conflicts);
}

template <>
std::vector<std::string> Slice<AttentionChannels>::explain(const AttentionChannels& plan,
                                                           const AttentionDecode& op) {
  const auto config = configured(plan, op);
  return {fmt::format(
      "channel splits: {} channels of keys and {} of values a block; {} bytes of partial scores",
      vq::key_channels(config), vq::value_channels(config), call_shape(plan, op).score_bytes)};
}

}  // namespace vqgen
