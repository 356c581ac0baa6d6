#include "heuristics/ops/attention_decode.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/ops/channel_splits.h"
#include "heuristics/placement.h"
#include "heuristics/placement/place.h"

namespace vqgen {
namespace {

// Heads a block: at most 8, so that 8 x vector_size accumulators stay in registers, and as even as
// the group allows (9 heads make blocks of 5 and 4).
int heads_per_block(int group) {
  constexpr int kMost = 8;
  return static_cast<int>(ceil_div(group, ceil_div(group, kMost)));
}

// Blocks that share a sequence: enough that there are `wanted` blocks, of about four tiles at
// least. `shares` blocks have each split.
int choose_splits(const AttentionDecode& op, const AttentionDecodePlan& plan, std::int64_t wanted,
                  int shares = 1) {
  const std::int64_t splits = ceil_div(wanted, head_blocks(op, plan) * shares);
  const std::int64_t most = ceil_div(op.shape.tokens, std::int64_t{4} * plan.tile_tokens);
  constexpr std::int64_t kMost = 256;
  return static_cast<int>(std::clamp<std::int64_t>(splits, 1, std::min(most, kMost)));
}

// Two waves of the GPU.
std::int64_t two_waves(const GpuSpec& gpu) { return std::int64_t{2} * gpu.sms; }

// Places the codebooks. Wide rows of codes may not fit in flight, whatever stands in global memory:
// shorter tiles, then one at a time.
void fit_tile(AttentionDecodePlan& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  constexpr int kShortestTile = 8;
  while (!place_codebooks(plan, op, gpu)) {
    if (plan.tile_tokens > kShortestTile) {
      plan.tile_tokens /= 2;
    } else if (plan.stages == 2) {
      plan.stages = 1;
    } else {
      break;
    }
  }
}

int lanes_per_token(int sub_vectors) {
  return std::min(8, static_cast<int>(std::bit_floor(static_cast<unsigned>(sub_vectors))));
}

// The values of `splits` with which check() accepts the plan, its codebooks in global memory.
std::vector<int> feasible_splits(AttentionDecodePlan plan, int AttentionDecodePlan::*splits,
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

std::int64_t head_blocks(const AttentionDecode& op, const AttentionDecodePlan& plan) {
  return std::int64_t{op.shape.kv_heads} * op.shape.batch *
         ceil_div(op.group(), plan.heads_per_block);
}

AttentionDecodePlan choose_attention_lanes(const AttentionDecode& op, const GpuSpec& gpu) {
  AttentionDecodePlan plan;
  plan.heads_per_block = heads_per_block(op.group());
  plan.lanes_per_token = lanes_per_token(op.shape.head_dim / op.keys.vector_size);
  fit_tile(plan, op, gpu);
  plan.splits = choose_splits(op, plan, two_waves(gpu));
  return plan;
}

AttentionDecodePlan choose_attention_tables(const AttentionDecode& op, const GpuSpec& gpu) {
  AttentionDecodePlan plan{.dataflow = AttentionDataflow::tables, .threads = 256};
  plan.heads_per_block = heads_per_block(op.group());
  while (plan.heads_per_block > 1 && !place_codebooks(plan, op, gpu)) {
    plan.heads_per_block = static_cast<int>(ceil_div(plan.heads_per_block, 2));
  }
  if (!place_codebooks(plan, op, gpu)) {
    plan.table_bits = 16;
    fit_tile(plan, op, gpu);
    if (op.dtype == DType::f16) plan.table_bits = 32;  // refused, unless a user takes 16
  }
  // Each block makes its tables: no more blocks than are resident at once.
  const std::int64_t bytes = vq::shared_layout(kernel_config(op, plan)).total;
  const std::int64_t resident = std::clamp<std::int64_t>(gpu.shared_bytes_per_sm / bytes, 1, 2);
  plan.splits = choose_splits(op, plan, resident * gpu.sms);
  return plan;
}

AttentionDecodePlan choose_attention_channels(const AttentionDecode& op, const GpuSpec& gpu) {
  using P = AttentionDecodePlan;
  P plan{.dataflow = AttentionDataflow::channels};
  plan.heads_per_block = heads_per_block(op.group());
  const std::int64_t blocks = std::max(two_waves(gpu), head_blocks(op, plan));
  plan.key_channel_splits = round_split(key_split_traffic(op, blocks),
                                        feasible_splits(plan, &P::key_channel_splits, op, gpu));
  plan.value_channel_splits = round_split(value_split_traffic(op, blocks, plan.key_channel_splits),
                                          feasible_splits(plan, &P::value_channel_splits, op, gpu));
  plan.lanes_per_token = lanes_per_token(
      std::max(op.shape.head_dim / plan.key_channel_splits / op.keys.vector_size, 1));
  fit_tile(plan, op, gpu);
  plan.splits = choose_splits(op, plan, two_waves(gpu),
                              std::min(plan.key_channel_splits, plan.value_channel_splits));
  return plan;
}

AttentionDecodePlan choose_attention(const AttentionDecode& op, const GpuSpec& gpu,
                                     AttentionDataflow dataflow) {
  if (dataflow == AttentionDataflow::tables) return choose_attention_tables(op, gpu);
  if (dataflow == AttentionDataflow::channels) return choose_attention_channels(op, gpu);
  if (dataflow == AttentionDataflow::fragments) {
    if (const auto plan = choose_attention_fragments(op, gpu)) return *plan;
  }
  AttentionDecodePlan plan = choose_attention_lanes(op, gpu);
  plan.dataflow = dataflow;
  return plan;
}

AttentionDecodePlan choose_attention_decode(const AttentionDecode& op, const GpuSpec& gpu) {
  if (const auto plan = choose_attention_fragments(op, gpu)) {
    return std::get<AttentionDecodePlan>(with_copies_where_they_win(*plan, op, gpu, kWorthwhile));
  }
  return choose_attention_lanes(op, gpu);
}

}  // namespace vqgen
