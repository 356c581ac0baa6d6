// Plans of attention_merge, which is bound by memory: enough loads in flight, over as many SMs as
// there are rows for.
#include <algorithm>

#include "core/ceil_div.h"
#include "heuristics/kernels/slice.h"

namespace vqgen {
namespace {

constexpr int kMergersAnSm = 8;  // blocks that a grid has at most, as many as can be resident
constexpr int kLeastThreads = 64;

// Blocks that have a row and head of their own.
std::int64_t turns(const MergeSimt& plan, const AttentionMerge& op) {
  return ceil_div(op.shape.rows * op.shape.heads,
                  std::int64_t{vq::heads_at_once(configured(plan, op))});
}

MergeSimt with_blocks(MergeSimt plan, const AttentionMerge& op, std::int64_t most) {
  plan.blocks = static_cast<int>(std::min(turns(plan, op), most));
  return plan;
}

}  // namespace

void judge_plan(Judge& judge, const MergeSimt& plan, const AttentionMerge& op, const GpuSpec& gpu) {
  const int lanes = vq::row_lanes(configured(plan, op));
  judge.require(plan.threads >= lanes,
                "threads {} are fewer than the {} lanes of a head of {} channels; raise threads",
                plan.threads, lanes, op.shape.head_dim);
  judge_block(judge, plan.threads, 0, gpu);
}

MergeSimt choose_plan(MergeSimt plan, const AttentionMerge& op, const GpuSpec& gpu) {
  const int lanes = vq::row_lanes(configured(plan, op));
  const auto halves = [&] { return plan.threads / 2 >= std::max(lanes, kLeastThreads); };
  while (halves() && turns(plan, op) < gpu.sms) plan.threads /= 2;
  return with_blocks(plan, op, std::int64_t{kMergersAnSm} * gpu.sms);
}

void add_candidates(Candidates& to, MergeSimt plan, const AttentionMerge& op, SpacePlacement) {
  to.add(choose_plan(plan, op, to.gpu));
  const int lanes = vq::row_lanes(configured(plan, op));
  for (const int threads : {64, 128, 256, 512}) {
    if (threads < lanes) continue;
    plan.threads = threads;
    for (const int blocks : {2, 4, 8, 16, 32}) {
      to.add(with_blocks(plan, op, std::int64_t{blocks} * to.gpu.sms));
    }
  }
}

PlanUse use_of(const MergeSimt& plan, const AttentionMerge& op) {
  return {.threads = plan.threads, .blocks = call_shape(plan, op).launches[0].x};
}

// No coefficients are fitted to it: the counts order candidates for the tuner's first looks, at the
// GPU's ceilings.
void count_work(BlockWork& to, const MergeSimt& plan, const AttentionMerge& op, const PlanUse& use,
                ConflictTable&) {
  const double of_block = static_cast<double>(turns(plan, op)) / static_cast<double>(use.blocks);
  const double warps = plan.threads / 32.0;
  // An element is converted and added; of a part's log-sum-exp an exponential is made.
  to.arithmetic += of_block * warps * op.shape.parts * (2 * vq::kMergedChannels + 6);
  to.l2_bytes += op.bytes() / static_cast<double>(use.blocks);
  to.chain += of_block;
  to.prologue += 1;
  to.registers = 24 + 6 * op.shape.parts;
}

std::vector<std::string> explain_plan(const MergeSimt& plan, const AttentionMerge& op) {
  const auto config = configured(plan, op);
  return {fmt::format("blocks {}: {} rows and heads at a time, {} lanes each", plan.blocks,
                      vq::heads_at_once(config), vq::row_lanes(config))};
}

}  // namespace vqgen
