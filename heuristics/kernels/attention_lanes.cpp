// Attention by lanes: the general form.
#include "heuristics/kernels/attention.h"

namespace vqgen {

template <>
void Slice<AttentionLanes>::judge(Judge& judge, const AttentionLanes& plan,
                                  const AttentionDecode& op, const GpuSpec& gpu) {
  judge_lanes(judge, plan, op);
  judge_attention(judge, plan, op, gpu);
}

template <>
AttentionLanes Slice<AttentionLanes>::choose(const AttentionDecode& op, const GpuSpec& gpu) {
  AttentionLanes plan;
  plan.heads_per_block = even_heads(op);
  plan.lanes_per_token = lanes_for(op.shape.head_dim / op.keys.vector_size);
  fit_tile(plan, op, gpu);
  plan.splits = choose_splits(op, plan, two_waves(gpu));
  return plan;
}

template <>
void Slice<AttentionLanes>::add_candidates(Candidates& to, const AttentionDecode& op,
                                           SpacePlacement allowed) {
  const std::vector<PlacementPair> placements = placement_pairs(op, allowed);
  AttentionLanes plan = choose(op, to.gpu());
  for (const int threads : {64, 128, 256}) {
    plan.threads = threads;
    for (const int tile : {8, 32, 64, 128, 256}) {
      plan.tile_tokens = tile;
      for (const int lanes : {2, 4, 8, 16}) {
        plan.lanes_per_token = lanes;
        // Lanes without a sub-vector, or threads without a token.
        if (lanes > op.shape.head_dim / op.keys.vector_size || threads / lanes > tile) continue;
        for (const int tiles : {2, 1}) {
          plan.tiles_in_flight = tiles;
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
PlanUse Slice<AttentionLanes>::use(const AttentionLanes& plan, const AttentionDecode& op) {
  return attention_use(plan, op);
}

template <>
void Slice<AttentionLanes>::count(BlockWork& to, const AttentionLanes& plan,
                                  const AttentionDecode& op, const PlanUse& use,
                                  ConflictTable& conflicts) {
  count_lanes(to, plan, op, use, conflicts);
}

}  // namespace vqgen
