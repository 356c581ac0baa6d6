#include "heuristics/ops/attention_decode.h"

#include <algorithm>
#include <bit>

#include "core/ceil_div.h"
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

// Blocks that share a sequence: enough for two waves of the GPU, of about four tiles at least.
int choose_splits(const AttentionDecode& op, const AttentionDecodePlan& plan, const GpuSpec& gpu) {
  const std::int64_t head_blocks = ceil_div(op.group(), plan.heads_per_block);
  const std::int64_t blocks = op.shape.kv_heads * head_blocks * op.shape.batch;
  const std::int64_t wanted = ceil_div(std::int64_t{2} * gpu.sms, blocks);
  const std::int64_t most = ceil_div(op.shape.tokens, std::int64_t{4} * plan.tile_tokens);
  constexpr std::int64_t kMost = 256;
  return static_cast<int>(std::clamp<std::int64_t>(wanted, 1, std::min(most, kMost)));
}

}  // namespace

AttentionDecodePlan choose_attention_lanes(const AttentionDecode& op, const GpuSpec& gpu) {
  AttentionDecodePlan plan;
  plan.heads_per_block = heads_per_block(op.group());
  const int key_sub_vectors = op.shape.head_dim / op.keys.vector_size;
  plan.lanes_per_token =
      std::min(8, 1 << (std::bit_width(static_cast<unsigned>(key_sub_vectors)) - 1));
  // Wide rows of codes may not fit in flight, whatever stands in global memory: shorter tiles, then
  // one at a time.
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
  plan.splits = choose_splits(op, plan, gpu);
  return plan;
}

AttentionDecodePlan choose_attention_decode(const AttentionDecode& op, const GpuSpec& gpu) {
  if (const auto plan = choose_attention_fragments(op, gpu)) {
    return std::get<AttentionDecodePlan>(with_copies_where_they_win(*plan, op, gpu));
  }
  return choose_attention_lanes(op, gpu);
}

}  // namespace vqgen
