// Plans of simt attention, the general form on CUDA cores.
#include "heuristics/kernels/attention.h"

namespace vqgen {

void judge_plan(Judge& judge, const AttentionSimt& plan, const AttentionDecode& op,
                const GpuSpec& gpu) {
  judge_lanes(judge, plan, op);
  judge_attention(judge, plan, op, gpu);
}

AttentionSimt choose_plan(AttentionSimt plan, const AttentionDecode& op, const GpuSpec& gpu) {
  plan.heads_per_block = even_heads(op);
  plan.lanes_per_token = lanes_for(op.shape.head_dim / op.keys.piece());
  fit_tile(plan, op, gpu);
  plan.splits = choose_splits(op, plan, two_waves(gpu));
  return plan;
}

void add_candidates(Candidates& to, AttentionSimt plan, const AttentionDecode& op,
                    SpacePlacement allowed) {
  const std::vector<PlacementPair> placements = placement_pairs(op, allowed);
  plan = choose_plan(plan, op, to.gpu);
  using P = AttentionSimt;
  for_each_of(plan,
              {{&P::threads, {64, 128, 256}},
               {&P::tile_tokens, {8, 32, 64, 128, 256}},
               {&P::lanes_per_token, {2, 4, 8, 16}},
               {&P::tiles_in_flight, {2, 1}}},
              [&] {
                const int lanes = plan.lanes_per_token;
                // Lanes without a sub-vector, or threads without a token.
                if (lanes > op.shape.head_dim / op.keys.piece()) return;
                if (plan.threads / lanes > plan.tile_tokens) return;
                add_splits(to, op, plan, plan.tile_tokens, placements);
              });
}

void count_work(BlockWork& to, const AttentionSimt& plan, const AttentionDecode& op,
                const PlanUse& use, ConflictTable& conflicts) {
  count_lanes(to, plan, op, use, conflicts);
}

}  // namespace vqgen
