// Dataflow fragments. The forms of a product, the warps of a block and how many of them share the
// columns, the length of a load, and the splits that fill the GPU with so many warps.
#include <algorithm>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/space/candidates.h"

namespace vqgen {
namespace {

struct Form {
  int fragment_rows;
  int rows_per_block;
  int outputs_per_warp;
};

std::vector<Form> forms(int rows) {
  if (rows <= 4) return {{4, 4, 8}, {4, 4, 16}, {8, 8, 16}};
  if (rows <= 8) return {{8, 8, 16}, {4, 8, 8}, {8, 8, 32}};
  std::vector<Form> all;
  for (const int most : {32, 64, 128}) {
    const int block = std::min(most, static_cast<int>(ceil_div(rows, 8)) * 8);
    for (const int outputs : {16, 32}) all.push_back({8, block, outputs});
    if (block >= rows) break;
  }
  return all;
}

// The splits for each number of warps an SM, with a chunk that is the whole share where shared
// memory holds its x, or a quarter of that.
void add_cuts(Candidates& to, LinearPlan plan, std::span<const Placement> placements) {
  const Linear& op = *as_linear(to.problem());
  const vq::LinearConfig config = kernel_config(op, plan);
  const std::int64_t run = vq::run_columns(config);
  const std::int64_t blocks = ceil_div(op.shape.out_features, vq::outputs_per_block(config)) *
                              ceil_div(op.shape.rows, plan.rows_per_block);
  constexpr std::int64_t kStagedBytes = 65536;
  const std::int64_t most = kStagedBytes / (2 * plan.rows_per_block);
  std::vector<std::pair<int, int>> cuts;  // chunk and splits of those added
  for (const int target : kWarpTargets) {
    const std::int64_t wanted = std::int64_t{target} * to.gpu().sms / (plan.threads / 32);
    const std::int64_t share =
        ceil_div(op.shape.in_features, std::max<std::int64_t>(1, wanted / blocks));
    for (const int part : {1, 4}) {
      const std::int64_t columns = std::min(ceil_div(share, run) * run, most) / part;
      const std::int64_t chunk =
          fitting_chunk(columns, run, config.unit_columns, op.shape.in_features);
      if (chunk < run * plan.warps_along_columns) continue;  // some warps would have no work
      plan.chunk_columns = static_cast<int>(chunk);
      plan.splits = static_cast<int>(even_splits(ceil_div(op.shape.in_features, chunk),
                                                 ceil_div(op.shape.in_features, share)));
      const std::pair cut(plan.chunk_columns, plan.splits);
      if (std::find(cuts.begin(), cuts.end(), cut) != cuts.end()) continue;
      cuts.push_back(cut);
      to.add_each(plan, placements);
    }
  }
}

}  // namespace

void add_linear_fragments(Candidates& to, SpacePlacement allowed) {
  const Linear& op = *as_linear(to.problem());
  const std::vector<Placement> placements = whole_placements(op.weights, allowed);
  LinearPlan plan{.dataflow = LinearDataflow::fragments};
  for (const Form& form : forms(op.shape.rows)) {
    plan.fragment_rows = form.fragment_rows;
    plan.rows_per_block = form.rows_per_block;
    plan.outputs_per_warp = form.outputs_per_warp;
    for (const int threads : {128, 256, 512}) {
      plan.threads = threads;
      for (int along = 1; along <= std::min(8, threads / 32); along *= 2) {
        plan.warps_along_columns = along;
        for (const int words : {4, 2, 1}) {
          plan.code_words = words;
          add_cuts(to, plan, placements);
        }
      }
    }
  }
}

}  // namespace vqgen
