// Dataflow warpgroups. The warp groups of a block and how many outputs each has, which decide how
// often x is read; the length of a load; a chunk whose x a thread fetches in one or two steps;
// whether lookups run ahead; and the splits that fill the GPU once, twice and four times.
#include <algorithm>
#include <set>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/ops/linear.h"
#include "heuristics/space/candidates.h"

namespace vqgen {
namespace {

// Idle warps with which the busiest multiprocessor has fewest outputs, if all blocks of a split
// take as long: 0 where none is better.
int evening_idle_warps(const Candidates& to, LinearPlan plan) {
  const Linear& op = *as_linear(to.problem());
  int best = 0;
  std::int64_t fewest = 0;
  for (int idle = 0; idle < vq::kGroupWarps; ++idle) {
    plan.idle_warps = idle;
    const std::int64_t outputs = vq::outputs_per_block(kernel_config(op, plan));
    const std::int64_t busiest =
        outputs * ceil_div(ceil_div(op.shape.out_features, outputs) *
                               ceil_div(op.shape.rows, plan.rows_per_block),
                           std::int64_t{to.gpu().sms});
    if (idle == 0 || busiest < fewest) fewest = busiest, best = idle;
  }
  return best;
}

void add_warpgroup_cuts(Candidates& to, LinearPlan plan, std::span<const Placement> placements) {
  const Linear& op = *as_linear(to.problem());
  const vq::LinearConfig config = kernel_config(op, plan);
  const std::int64_t run = vq::run_columns(config);
  const std::int64_t blocks = ceil_div(op.shape.out_features, vq::outputs_per_block(config)) *
                              ceil_div(op.shape.rows, plan.rows_per_block);
  for (const int steps : {1, 2}) {
    const std::int64_t columns = std::int64_t{32} * steps * plan.threads / plan.rows_per_block;
    for (const int waves : {1, 2, 4}) {
      const std::int64_t splits =
          std::max<std::int64_t>(1, std::int64_t{waves} * to.gpu().sms / blocks);
      const std::int64_t share = ceil_div(op.shape.in_features, splits);
      const std::int64_t chunk =
          fitting_chunk(std::max(run, std::min(columns, ceil_div(share, run) * run)), run,
                        config.unit_columns, op.shape.in_features);
      if (chunk == 0) continue;
      plan.chunk_columns = static_cast<int>(chunk);
      plan.splits = static_cast<int>(even_splits(ceil_div(op.shape.in_features, chunk), splits));
      for (const int ahead : {0, 1}) {
        plan.steps_ahead = ahead;
        to.add_each(plan, placements);
      }
    }
  }
}

}  // namespace

// For two rows on: 3 and 4 rows took 63 and 56 us by tables and fragments where 8 took 50 by warp
// groups (28672x8192, 2 x 8 bits, H200).
void add_linear_warpgroups(Candidates& to, SpacePlacement allowed) {
  const Linear& op = *as_linear(to.problem());
  constexpr int kFewestRows = 2;
  if (!to.gpu().warpgroup_products || op.shape.rows < kFewestRows) return;
  const std::vector<Placement> placements = whole_placements(op.weights, allowed);
  LinearPlan plan{.dataflow = LinearDataflow::warpgroups};
  const int rows = warpgroup_rows(op.shape.rows);
  for (const int part : {1, 2}) {
    plan.rows_per_block = rows / part;
    for (const int outputs : {16, 32}) {
      plan.outputs_per_warp = outputs;
      for (const int threads : {128, 256, 512}) {
        plan.threads = threads;
        for (const int words : {4, 2, 1}) {
          plan.code_words = words;
          for (const int idle : std::set{0, evening_idle_warps(to, plan)}) {
            plan.idle_warps = idle;
            add_warpgroup_cuts(to, plan, placements);
          }
          plan.idle_warps = 0;
        }
      }
    }
    if (rows <= 32) break;  // codes are read again for each part
  }
}

}  // namespace vqgen
