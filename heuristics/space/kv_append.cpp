// The dataflow of kv_append.
#include "heuristics/ops/kv_append.h"
#include "heuristics/space/candidates.h"

namespace vqgen {

// Codebooks are read from global memory as they stand.
void add_kv_append_lanes(Candidates& to, SpacePlacement allowed) {
  if (allowed == SpacePlacement::shared) return;
  to.add(choose_kv_append(std::get<KvAppend>(to.problem()), to.gpu()));
  KvAppendPlan plan;
  for (const int threads : {64, 128, 256, 512}) {
    for (const int splits : {1, 2, 4, 8, 16}) {
      for (const int tokens : {1, 4, 16}) {  // more than there are is refused
        for (const int along : {1, 2, 4, 8, 16}) {
          if (along > threads / 32) break;
          for (const int sub_vectors : {1, 2, 4, 8}) {
            plan.threads = threads;
            plan.splits = splits;
            plan.tokens_per_block = tokens;
            plan.warps_along_entries = along;
            plan.sub_vectors_per_warp = sub_vectors;
            to.add(plan);
          }
        }
      }
    }
  }
}

}  // namespace vqgen
