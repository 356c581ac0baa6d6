// What the dataflows of an op count alike, and a plan's whole count.
#include "heuristics/cost/work.h"

#include "core/ceil_div.h"
#include "heuristics/kernels/slice.h"

namespace vqgen {
namespace {

BlockWork begun(const PlanUse& use) {
  return {.threads = use.threads, .shared_bytes = use.shared_bytes, .blocks = use.blocks};
}

template <class P>
BlockWork begun(const P& plan, const AttentionDecode& op, const PlanUse& use) {
  BlockWork work = begun(use);
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
  return work;
}

template <class P>
BlockWork begun(const P& plan, const Linear& op, const PlanUse& use) {
  BlockWork work = begun(use);
  const auto config = configured(plan, op);
  const OperandUse& weights = use.operands.front();
  work.splits = vq::splits(config);
  work.memory_bytes = weights.code_bytes + static_cast<double>(weights.codebook_bytes());
  const double sums =
      static_cast<double>(op.shape.rows) * static_cast<double>(op.shape.out_features);
  if (work.splits > 1) work.partial_bytes = 2 * 4 * sums * work.splits;
  if (plan.combine == Combine::last_block) {
    const int results = vq::outputs_per_block(config) * vq::block_rows(config);
    work.merge_turns =
        static_cast<double>(ceil_div(results, plan.threads) * ceil_div(work.splits, 16));
  }
  add_fill(work, weights);
  work.l2_bytes += weights.code_bytes * weights.code_reads / static_cast<double>(use.blocks);
  return work;
}

template <class P>
BlockWork begun(const P&, const KvAppend& op, const PlanUse& use) {
  BlockWork work = begun(use);
  const double rows = 1.0 * op.shape.batch * op.shape.kv_heads * op.shape.new_tokens;
  const auto codes = [&](const VqFormat& format) { return format.bits_per_element() / 8; };
  work.memory_bytes = rows * op.shape.head_dim * (4 + codes(op.keys) + codes(op.values));
  return work;
}

template <class P>
BlockWork counted(const P& plan, const OpOf<P>& op, const PlanUse& use, ConflictTable& conflicts) {
  BlockWork work = begun(plan, op, use);
  Slice<P>::count(work, plan, op, use, conflicts);
  return work;
}

}  // namespace

BlockWork block_work(const Plan& plan, const Problem& problem, ConflictTable& conflicts) {
  return visit_plan(plan, problem, [&]<class P>(const P& each, const OpOf<P>& op) {
    return counted(each, op, Slice<P>::use(each, op), conflicts);
  });
}

AlikeWork alike_work(const Plan& plan, const Problem& problem, ConflictTable& conflicts) {
  Plan bare = plan;
  // Fills nothing, takes no shared memory, has no conflicts.
  *placement_of(bare, Operand::weights) = all_global();
  return visit_plan(bare, problem, [&]<class P>(const P& each, const OpOf<P>& op) {
    PlanUse use = Slice<P>::use(each, op);
    AlikeWork alike{counted(each, op, use, conflicts), std::move(use.operands.front())};
    alike.bare.lines = alike.bare.gathered_bytes = 0;
    return alike;
  });
}

std::optional<BlockWork> placed_work(const AlikeWork& alike, const Placement& placement,
                                     const GpuSpec& gpu, ConflictTable& conflicts) {
  BlockWork work = alike.bare;
  OperandUse weights = alike.weights;
  vq::Carver without;
  vq::carve_codebook(weights.format, weights.units, without);
  weights.format.placement = placement;
  vq::Carver with;
  vq::carve_codebook(weights.format, weights.units, with);
  work.shared_bytes += with.next - without.next;
  if (work.shared_bytes > gpu.shared_bytes_per_block) return std::nullopt;
  add_fill(work, weights);
  if (work.entries > 0) add_levels(work, weights, work.entries, conflicts);
  return work;
}

}  // namespace vqgen
