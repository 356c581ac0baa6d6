// Counts of attention_decode's dataflows, by what templates/vq/ops/attention_*.cuh do.
#include <algorithm>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/cost/work.h"

namespace vqgen {
namespace {

// A token's key is decoded by lanes_per_token threads, its value by a thread a sub-vector; four
// barriers a tile.
void count_lanes(BlockWork& to, const AttentionDecode& op, const AttentionDecodePlan& plan,
                 const PlanUse& use, double tiles, ConflictTable& conflicts) {
  const double warps = plan.threads / 32.0;
  const double heads = plan.heads_per_block;
  const double tile = plan.tile_tokens;
  const double key_subs = op.shape.head_dim / op.keys.vector_size;
  const double value_subs = op.shape.head_dim / op.values.vector_size;
  // Turns of a warp in one tile: tokens at a time, sub-vectors of a lane.
  const double key_turns = std::ceil(tile * plan.lanes_per_token / plan.threads) *
                           std::ceil(key_subs / plan.lanes_per_token);
  const double slices = std::floor(plan.threads / value_subs);
  const double value_turns = std::ceil(tile / slices);
  const double keys = tiles * warps * key_turns;
  const double values = tiles * warps * value_turns;
  add_lookups(to, use.operands[0], keys * op.keys.residuals, conflicts);
  add_lookups(to, use.operands[1], values * op.values.residuals, conflicts);
  // The query is read from shared memory, the probability of a token once a head.
  to.arithmetic += keys * heads * op.keys.vector_size * 1.5;
  to.arithmetic += values * heads * (op.values.vector_size + 1);
  to.passes += keys * (op.keys.residuals + heads * op.keys.vector_size / 4.0);
  to.passes += values * (op.values.residuals + heads);
  const double words = static_cast<double>(
      vq::row_words(op.shape.head_dim, op.keys.vector_size, op.keys.residuals, op.keys.index_bits) +
      vq::row_words(op.shape.head_dim, op.values.vector_size, op.values.residuals,
                    op.values.index_bits));
  to.arithmetic += tiles * warps * 2 * std::ceil(tile * words / plan.threads);
  to.arithmetic += tiles * heads * (tile / 32 * 8 + 30);  // softmax
  to.prologue += 4 * tiles + slices / 4 + 2;
  to.chain += tiles * (key_turns + value_turns);
  if (plan.stages == 1) to.chain += 2 * tiles;  // codes arrive while nothing else goes on
  to.registers = 48 + static_cast<int>(heads) * (op.values.vector_size + 2);
}

// Each warp takes steps of tile_tokens tokens of its own, in tiles of 8; the warps' parts are
// merged once.
void count_fragments(BlockWork& to, const AttentionDecode& op, const AttentionDecodePlan& plan,
                     const PlanUse& use, ConflictTable& conflicts) {
  const double warps = plan.threads / 32.0;
  const double tokens = std::ceil(static_cast<double>(op.shape.tokens) / plan.splits);
  const double steps = std::ceil(tokens / (warps * plan.tile_tokens));
  const double tiles = warps * steps * plan.tile_tokens / 8;
  const double quads = std::ceil(plan.heads_per_block / 4.0);
  const auto lookups = [&](const VqFormat& format) {
    return tiles * op.shape.head_dim / 4.0 / format.vector_size * format.residuals;
  };
  add_lookups(to, use.operands[0], lookups(op.keys), conflicts);
  add_lookups(to, use.operands[1], lookups(op.values), conflicts);
  const double octets = op.shape.head_dim / 32.0;
  double parts = vq::query_parts(kernel_config(op, plan));
  if (op.keys.entry_type == EntryType::int8) parts /= 2;  // a product takes twice the channels
  to.products += tiles * octets * quads * (op.keys.residuals * parts + op.values.residuals);
  to.arithmetic += tiles * quads * 24;  // softmax of a score a lane, and its way to the values
  const double merged = warps * quads * 4 * (op.shape.head_dim + 2) * 4 / 128;
  to.passes += 2 * merged;
  to.prologue += 4;
  to.chain += steps;
  to.registers = 128;
}

}  // namespace

BlockWork block_work(const AttentionDecode& op, const AttentionDecodePlan& plan,
                     ConflictTable& conflicts) {
  const PlanUse use = plan_use(plan, op);
  BlockWork work{.threads = use.threads, .shared_bytes = use.shared_bytes, .blocks = use.blocks};
  work.splits = plan.splits;
  const double blocks = static_cast<double>(use.blocks);
  for (const OperandUse& each : use.operands) {
    work.memory_bytes += each.code_bytes + static_cast<double>(each.codebook_bytes());
    work.l2_bytes += each.code_bytes * each.code_reads / blocks;
    add_fill(work, each);
  }
  const double sums = static_cast<double>(op.shape.batch) * op.shape.query_heads;
  if (plan.splits > 1) work.partial_bytes = 2 * 4 * sums * (op.shape.head_dim + 2) * plan.splits;
  if (plan.combine == Combine::last_block) {
    const int channels = plan.heads_per_block * op.shape.head_dim;
    const std::int64_t turns = ceil_div(plan.splits, 16) + ceil_div(plan.splits, 8);
    work.merge_turns = static_cast<double>(ceil_div(channels, plan.threads) * turns);
  }
  if (plan.dataflow == AttentionDataflow::fragments) {
    count_fragments(work, op, plan, use, conflicts);
    return work;
  }
  const std::int64_t tiles = ceil_div(op.shape.tokens, std::int64_t{plan.tile_tokens});
  const auto block_tiles = static_cast<double>(ceil_div(tiles, std::int64_t{plan.splits}));
  count_lanes(work, op, plan, use, block_tiles, conflicts);
  return work;
}

}  // namespace vqgen
