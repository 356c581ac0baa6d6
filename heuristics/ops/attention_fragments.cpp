#include <algorithm>

#include "core/ceil_div.h"
#include "core/check.h"
#include "core/kernel_config.h"
#include "heuristics/occupancy.h"
#include "heuristics/ops/attention_decode.h"
#include "heuristics/placement.h"
#include "heuristics/placement/place.h"
#include "heuristics/placement/plan_use.h"

namespace vqgen {
namespace {

std::int64_t row_words(const AttentionDecode& op, const VqFormat& format) {
  return vq::row_words(op.shape.head_dim, format.vector_size, format.residuals, format.index_bits);
}

// The words that one load moves at most, for rows of keys and values alike.
int widest_load(const AttentionDecode& op) {
  for (const int width : {4, 2}) {
    if (row_words(op, op.keys) % width == 0 && row_words(op, op.values) % width == 0) return width;
  }
  return 1;
}

// Blocks that share a sequence: as many as one wave holds, so that no block waits for another to
// end, with a step for each warp at least. On an H200, 16 blocks for each of 8 heads took 16.9 us
// where 24 and 32 took 20 and more (d4b8, 32768 tokens).
std::int64_t wave(const AttentionDecode& op, const AttentionDecodePlan& plan, const GpuSpec& gpu) {
  constexpr std::int64_t kMost = 256;
  return std::clamp<std::int64_t>(gpu.sms / head_blocks(op, plan), 1, kMost);
}
int one_wave(const AttentionDecode& op, const AttentionDecodePlan& plan, const GpuSpec& gpu) {
  const std::int64_t steps =
      ceil_div(op.shape.tokens, std::int64_t{plan.threads} / 32 * plan.tile_tokens);
  return static_cast<int>(std::min(wave(op, plan, gpu), steps));
}

// Tokens of a sequence that a block of one wave takes.
std::int64_t share_of_block(const AttentionDecode& op, const AttentionDecodePlan& plan,
                            const GpuSpec& gpu) {
  return ceil_div(op.shape.tokens, wave(op, plan, gpu));
}

// Whether each group of channels has a codebook of its own, and blocks look up no more entries than
// they load.
bool reads_entries_once(const AttentionDecode& op, const AttentionDecodePlan& plan) {
  if (op.keys.scope != Scope::channel_group || op.values.scope != Scope::channel_group) {
    return false;
  }
  const PlanUse use = plan_use(plan, op);
  return std::all_of(use.operands.begin(), use.operands.end(), [](const OperandUse& each) {
    const std::int64_t entries = each.units * each.format.residuals * vq::entries(each.format);
    return each.lookups <= each.fills * static_cast<double>(entries);
  });
}

// Where one wave leaves a block few tokens, more warps would take them from other blocks, and to
// fill shared memory with entries takes longer than what they are read for: CQ-2, 8 KV heads, took
// 7.7 us for 1024 tokens so, 8.5 with half the warps, and 12.2 as longer ones do (H200). From 128
// tokens on a codebook a head is worth copying: 1 x 2048 of d4b8 took 6.6 us so, 7.2 without. Of a
// codebook a channel group, 256 tokens read an entry once on average: CQ-4 and CQ-2 with 32 KV
// heads, 1 x 1024, took 10.1 and 8.1 us so, 14.9 and 10.2 with entries in shared memory. Lookups
// that wait for global memory take registers, which more heads a block need themselves (8 KV heads,
// 4096 tokens: no gain).
std::optional<AttentionDecodePlan> for_short_shares(const AttentionDecode& op,
                                                    AttentionDecodePlan plan, const GpuSpec& gpu) {
  constexpr std::int64_t kShort = 64;  // tokens
  plan.threads = 256;
  plan.tile_tokens = 16;
  plan.splits = one_wave(op, plan, gpu);
  const bool leave_entries = share_of_block(op, plan, gpu) <= kShort ||
                             (plan.heads_per_block == 1 && reads_entries_once(op, plan));
  if (!leave_entries || !check(plan, op, gpu).ok) return std::nullopt;
  return plan;
}

// 8 warps in place of 16: where those would take a step or two each, fewer parts are merged at the
// end (d4b8, 1 x 8192: 8.9 us against 9.7), and where blocks stand in line, two that share a
// multiprocessor fill each other's gaps (64 x 8192: 106 us against 110). Where codebooks leave no
// room for two, nothing but warps fills them (CQ-4, 8 x 1024: 45 us against 38; H200).
bool wants_few_warps(const AttentionDecode& op, const AttentionDecodePlan& plan,
                     const GpuSpec& gpu) {
  constexpr std::int64_t kFew = 512;  // tokens
  if (share_of_block(op, plan, gpu) <= kFew) return true;
  if (head_blocks(op, plan) <= gpu.sms) return false;
  AttentionDecodePlan half = plan;
  half.threads = 256;
  return place_codebooks(half, op, gpu) &&
         occupancy(gpu, half.threads, kAssumedRegisters, plan_use(half, op).shared_bytes).blocks >=
             2;
}

// Tokens that a warp works on at once. 32 took 55.6 us where 16 took 63.0 (d4b8, 16 x 16384 tokens,
// H200) and need nearly all registers of a block of 512; more heads or channels, or longer rows of
// codes in flight, would spill. Where entries are too many for a copy a lane, and lookups wait for
// each other, 16 are enough: 116 us where 32 took 123 (d8b12, 16 x 16384).
int step_tokens(const AttentionDecode& op, const AttentionDecodePlan& plan) {
  constexpr std::int64_t kShortRow = 8;  // words
  constexpr int kFewEntries = 256;
  const bool short_rows = std::max(row_words(op, op.keys), row_words(op, op.values)) <= kShortRow;
  const bool few = std::max(op.keys.entries(), op.values.entries()) <= kFewEntries;
  return plan.heads_per_block <= 4 && op.shape.head_dim <= 128 && short_rows && few ? 32 : 16;
}

}  // namespace

std::optional<AttentionDecodePlan> choose_attention_fragments(const AttentionDecode& op,
                                                              const GpuSpec& gpu) {
  AttentionDecodePlan plan{.dataflow = AttentionDataflow::fragments};
  const std::int64_t most_heads = op.shape.head_dim > 128 ? 4 : 8;
  const std::int64_t group = op.group();
  plan.heads_per_block = static_cast<int>(ceil_div(group, ceil_div(group, most_heads)));
  plan.code_words = widest_load(op);
  if (const auto of_short_shares = for_short_shares(op, plan, gpu)) return of_short_shares;
  plan.tile_tokens = step_tokens(op, plan);
  for (const int threads : {512, 256, 128}) {
    if (threads > 256 && wants_few_warps(op, plan, gpu)) continue;
    plan.threads = threads;
    if (!place_codebooks(plan, op, gpu)) continue;
    plan.splits = one_wave(op, plan, gpu);
    return plan;
  }
  return std::nullopt;
}

}  // namespace vqgen
