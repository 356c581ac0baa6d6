// Dataflows lanes and tables of the products.
#include <algorithm>
#include <set>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/occupancy.h"
#include "heuristics/ops/linear.h"
#include "heuristics/space/candidates.h"

namespace vqgen {
namespace {

// Splits for so many warps an SM.
int splits_for(const Candidates& to, const LinearPlan& plan, int target) {
  const Linear& op = *as_linear(to.problem());
  const vq::LinearConfig config = kernel_config(op, plan);
  const std::int64_t blocks = ceil_div(op.shape.out_features, vq::outputs_per_block(config)) *
                              ceil_div(op.shape.rows, plan.rows_per_block);
  const std::int64_t wanted = std::int64_t{target} * to.gpu().sms / (plan.threads / 32);
  return static_cast<int>(
      even_splits(vq::chunks(config), std::max<std::int64_t>(1, wanted / blocks)));
}

// Outputs a warp: powers of two, and what fills one, two and three waves of blocks evenly.
std::set<int> table_outputs(const Candidates& to, const LinearPlan& plan) {
  std::set<int> outputs{16, 32, 64, 128, 256, 512};
  const Linear& op = *as_linear(to.problem());
  const vq::LinearConfig config = kernel_config(op, plan);
  constexpr int kRegisters = 64;  // a thread, at most: what the largest block leaves it
  const int blocks =
      occupancy(to.gpu(), plan.threads, kRegisters, vq::shared_layout(config).total).blocks;
  const std::int64_t of_one =
      ceil_div(op.shape.rows, plan.rows_per_block) * std::int64_t{plan.splits};
  for (const int waves : {1, 2, 3}) {
    const std::int64_t shares = std::int64_t{waves} * blocks * to.gpu().sms / of_one;
    if (shares == 0) continue;
    const std::int64_t warps = shares * (plan.threads / 32);
    const std::int64_t own = ceil_div(op.shape.out_features, warps);
    outputs.insert(static_cast<int>(std::min<std::int64_t>(4096, ceil_div(own, 4) * 4)));
  }
  return outputs;
}

}  // namespace

// What choose_lanes() takes, and shorter and longer chunks: the fallback, so few of them. No
// copies: a lane is bound by instructions here.
void add_linear_lanes(Candidates& to, SpacePlacement allowed) {
  const Linear& op = *as_linear(to.problem());
  const std::vector<Placement> placements = single_placements(op.weights, allowed);
  LinearPlan plan = choose_lanes(to.problem(), to.gpu());
  const int chunk = plan.chunk_columns;
  constexpr int kTarget = 32;
  for (const int part : {1, 4}) {
    if (chunk / part < op.weights.vector_size) break;
    for (const int outputs : {1, 2, 4}) {
      plan.chunk_columns = chunk / part;
      plan.outputs_per_warp = outputs;
      plan.splits = splits_for(to, plan, kTarget);
      to.add_each(plan, placements);
    }
  }
}

// A split is a chunk, so all that is free is how many sub-vectors of x a block has tables of and
// how many outputs share them.
void add_linear_tables(Candidates& to, SpacePlacement allowed) {
  const Linear& op = *as_linear(to.problem());
  // Entries are read once, to make the tables.
  const std::vector<Placement> placements = single_placements(op.weights, allowed);
  LinearPlan plan{.dataflow = LinearDataflow::tables};
  for (const int rows : {4, 8}) {
    plan.rows_per_block = rows;
    for (const int sub_vectors : {1, 2, 4}) {
      plan.chunk_columns = 32 * sub_vectors * op.weights.vector_size;
      plan.splits = static_cast<int>(
          std::min<std::int64_t>(4096, ceil_div(op.shape.in_features, plan.chunk_columns)));
      // Across codebooks tables are made without the tensor core, which takes longer than wider
      // loads save (1.3 to 1.7 times as long, gptvq-2 on an H200).
      if (sub_vectors > 1 && !vq::chunk_in_one_unit(kernel_config(op, plan))) continue;
      for (const int threads : {128, 256, 512, 1024}) {
        plan.threads = threads;
        for (const int outputs : table_outputs(to, plan)) {
          plan.outputs_per_warp = outputs;
          to.add_each(plan, placements);
        }
      }
    }
    if (rows >= op.shape.rows) break;
  }
}

}  // namespace vqgen
