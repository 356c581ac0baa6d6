// Attention by channels: shares of the channels split by the traffic of codebooks and partial
// scores (channel_splits.h).
#include "heuristics/kernels/attention.h"
#include "heuristics/kernels/channel_splits.h"

namespace vqgen {
namespace {

double bytes_moved(const SplitTraffic& traffic, int splits) {
  return traffic.codebook_bytes / std::min(splits, traffic.units) +
         traffic.reduction_bytes * splits;
}

// The codebooks that serve one head, loaded by each of the blocks.
SplitTraffic split_traffic(const VqFormat& format, int row, std::int64_t blocks,
                           double reduction_bytes) {
  const int units = format.scope == Scope::channel_group ? row / format.channels_per_group() : 1;
  const double book = 2.0 * format.num_codebooks * format.entries() * format.vector_size;
  return {static_cast<double>(blocks) * units * book, reduction_bytes, units};
}

// One fp32 score of each token and head of a query token.
double score_bytes(const AttentionDecode& op) {
  return 4.0 * op.shape.batch * op.shape.query_tokens * op.shape.query_heads *
         static_cast<double>(op.shape.tokens);
}

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
                                 const AttentionDecode& op, const GpuSpec& gpu, int row) {
  std::vector<int> feasible;
  for (int s = 1; s <= row / 2; ++s) {
    plan.*splits = s;
    if (row % s == 0 && check(plan, op, gpu).ok) feasible.push_back(s);
  }
  if (feasible.empty()) feasible.push_back(1);
  return feasible;
}

}  // namespace

int round_split(const SplitTraffic& traffic, std::span<const int> feasible) {
  return *std::min_element(feasible.begin(), feasible.end(), [&](int a, int b) {
    const double with_a = bytes_moved(traffic, a);
    const double with_b = bytes_moved(traffic, b);
    return with_a != with_b ? with_a < with_b : a < b;
  });
}

SplitTraffic key_split_traffic(const AttentionDecode& op, std::int64_t blocks) {
  return split_traffic(op.keys, op.shape.head_dim, blocks,
                       2 * score_bytes(op));  // written, and read once
}

SplitTraffic value_split_traffic(const AttentionDecode& op, std::int64_t blocks, int key_splits) {
  return split_traffic(op.values, op.shape.value_dim(), blocks, key_splits * score_bytes(op));
}

void judge_plan(Judge& judge, const AttentionChannels& plan, const AttentionDecode& op,
                const GpuSpec& gpu) {
  judge_narrow(judge, op.keys, "keys");
  judge_narrow(judge, op.values, "values");
  if (!judge.ok()) return;
  judge.require(!op.keys.is_scalar() && !op.values.is_scalar(),
                "scalar codes are no entries, which dataflow channels looks up; use mma or "
                "simt");
  const auto config = configured(plan, op);
  judge_shares(judge, config.keys, config.head_dim, plan.key_channel_splits, "key");
  judge_shares(judge, config.values, config.value_dim, plan.value_channel_splits, "value");
  const double scores = score_bytes(op) * plan.key_channel_splits;
  judge.require(scores <= static_cast<double>(gpu.memory_bytes),
                "partial scores of {} tokens, {} query heads and {} sequences take {:.3g} bytes, "
                "{} has {}; use another dataflow",
                op.shape.tokens, op.shape.query_heads, op.shape.batch, scores, gpu.name,
                gpu.memory_bytes);
  if (!judge.ok()) return;
  judge_lanes(judge, plan, op);
  judge_attention(judge, plan, op, gpu);
}

AttentionChannels choose_plan(AttentionChannels plan, const AttentionDecode& op,
                              const GpuSpec& gpu) {
  using P = AttentionChannels;
  plan.heads_per_block = even_heads(op);
  const std::int64_t blocks = std::max(two_waves(gpu), head_blocks(op, plan));
  plan.key_channel_splits =
      round_split(key_split_traffic(op, blocks),
                  feasible_splits(plan, &P::key_channel_splits, op, gpu, op.shape.head_dim));
  plan.value_channel_splits =
      round_split(value_split_traffic(op, blocks, plan.key_channel_splits),
                  feasible_splits(plan, &P::value_channel_splits, op, gpu, op.shape.value_dim()));
  plan.lanes_per_token =
      lanes_for(std::max(op.shape.head_dim / plan.key_channel_splits / op.keys.vector_size, 1));
  fit_tile(plan, op, gpu);
  plan.splits = choose_splits(op, plan, two_waves(gpu),
                              std::min(plan.key_channel_splits, plan.value_channel_splits));
  return plan;
}

// Channel splits: none, s* (channel_splits.h), and twice and half s*.
void add_candidates(Candidates& to, AttentionChannels plan, const AttentionDecode& op,
                    SpacePlacement allowed) {
  const std::vector<PlacementPair> placements = placement_pairs(op, allowed);
  using P = AttentionChannels;
  plan = choose_plan(plan, op, to.gpu);
  const auto around = [](int splits) { return std::vector{splits, 1, splits * 2, splits / 2}; };
  for_each_of(plan,
              {{&P::threads, {128, 256}},
               {&P::tile_tokens, {32, 64, 128}},
               {&P::key_channel_splits, around(plan.key_channel_splits)},
               {&P::value_channel_splits, around(plan.value_channel_splits)}},
              [&] { add_splits(to, op, plan, plan.tile_tokens, placements); });
}

void count_work(BlockWork& to, const AttentionChannels& plan, const AttentionDecode& op,
                const PlanUse& use, ConflictTable& conflicts) {
  count_lanes(to, plan, op, use, conflicts);
}

std::vector<std::string> explain_plan(const AttentionChannels& plan, const AttentionDecode& op) {
  const auto config = configured(plan, op);
  return {fmt::format(
      "channel splits: {} channels of keys and {} of values a block; {} bytes of partial scores",
      vq::key_channels(config), vq::value_channels(config), call_shape(plan, op).handed_bytes)};
}

}  // namespace vqgen
