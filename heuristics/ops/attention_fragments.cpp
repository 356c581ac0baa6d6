#include <algorithm>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/ops/attention_decode.h"
#include "heuristics/placement.h"

namespace vqgen {
namespace {

// The words that one load moves at most, for rows of keys and values alike.
int widest_load(const AttentionDecode& op) {
  const auto words = [&op](const VqFormat& format) {
    return vq::row_words(op.shape.head_dim, format.vector_size, format.residuals,
                         format.index_bits);
  };
  for (const int width : {4, 2}) {
    if (words(op.keys) % width == 0 && words(op.values) % width == 0) return width;
  }
  return 1;
}

// Blocks that share a sequence: as many as one wave holds, so that no block waits for another to
// end, with a step for each warp at least. On an H200, 16 blocks for each of 8 heads took 16.9 us
// where 24 and 32 took 20 and more (d4b8, 32768 tokens).
int one_wave(const AttentionDecode& op, const AttentionDecodePlan& plan, const GpuSpec& gpu) {
  const std::int64_t blocks =
      op.shape.kv_heads * op.shape.batch * ceil_div(std::int64_t{op.group()}, plan.heads_per_block);
  const std::int64_t steps =
      ceil_div(op.shape.tokens, std::int64_t{plan.threads} / 32 * plan.tile_tokens);
  constexpr std::int64_t kMost = 256;
  return static_cast<int>(std::clamp<std::int64_t>(gpu.sms / blocks, 1, std::min(steps, kMost)));
}

}  // namespace

std::optional<AttentionDecodePlan> choose_attention_fragments(const AttentionDecode& op,
                                                              const GpuSpec& gpu) {
  AttentionDecodePlan plan{.dataflow = AttentionDataflow::fragments, .tile_tokens = 16};
  const std::int64_t most_heads = op.shape.head_dim > 128 ? 4 : 8;
  const std::int64_t group = op.group();
  plan.heads_per_block = static_cast<int>(ceil_div(group, ceil_div(group, most_heads)));
  plan.code_words = widest_load(op);
  for (const int threads : {512, 256, 128}) {
    plan.threads = threads;
    if (!place_codebooks(plan, op, gpu)) continue;
    plan.splits = one_wave(op, plan, gpu);
    return plan;
  }
  return std::nullopt;
}

}  // namespace vqgen
