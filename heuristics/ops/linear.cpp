#include "heuristics/ops/linear.h"

#include <algorithm>
#include <bit>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/placement.h"

namespace vqgen {
namespace {

// The largest part of a codebook's `unit` columns that divides it, holds whole vectors of `v` and
// is at most `budget` long.
std::int64_t part_of_unit(std::int64_t unit, std::int64_t v, std::int64_t budget) {
  std::int64_t parts = (unit + budget - 1) / budget;
  while (unit % parts != 0 || unit / parts % v != 0) ++parts;  // ends at unit / v
  return unit / parts;
}

// Columns staged at once: whole codebooks, or the largest even part of one, with rows x columns
// fp32 within 16 KB.
int chunk_columns(const Linear& op, const LinearPlan& plan) {
  constexpr std::int64_t kStagedFloats = 4096;
  const std::int64_t budget = kStagedFloats / std::min(op.shape.rows, plan.rows_per_block);
  const std::int64_t unit = kernel_config(op, plan).unit_columns;
  const std::int64_t v = op.weights.vector_size;
  if (unit >= op.shape.in_features || unit > budget) {
    if (unit < op.shape.in_features) return static_cast<int>(part_of_unit(unit, v, budget));
    const auto chunk =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(budget)));
    return static_cast<int>(std::min(chunk, op.shape.in_features));
  }
  return static_cast<int>(
      unit * static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(budget / unit))));
}

// Outputs a warp: as the default, halved until a block's outputs divide the rows of a tile.
void fit_tile_rows(const Linear& op, LinearPlan& plan) {
  if (op.weights.scope != Scope::tile) return;
  while (plan.outputs_per_warp > 1 &&
         op.weights.tile_rows % (plan.threads / 32 * plan.outputs_per_warp) != 0) {
    plan.outputs_per_warp /= 2;
  }
  while (plan.threads > 32 &&
         op.weights.tile_rows % (plan.threads / 32 * plan.outputs_per_warp) != 0) {
    plan.threads /= 2;
  }
}

}  // namespace

LinearPlan choose_lanes(const Problem& problem, const GpuSpec& gpu) {
  const Linear& op = *as_linear(problem);
  LinearPlan plan;
  fit_tile_rows(op, plan);
  plan.chunk_columns = chunk_columns(op, plan);
  place_codebooks(plan, problem, gpu);
  return plan;
}

LinearPlan choose_tables(const Problem& problem) {
  const Linear& op = *as_linear(problem);
  LinearPlan plan{.dataflow = LinearDataflow::tables, .outputs_per_warp = 32};
  fit_tile_rows(op, plan);
  plan.chunk_columns = 32 * op.weights.vector_size;
  plan.splits = static_cast<int>(ceil_div(op.shape.in_features, plan.chunk_columns));
  plan.rows_per_block = 4;
  return plan;
}

LinearPlan choose_linear(const Problem& problem, const GpuSpec& gpu, LinearDataflow dataflow) {
  if (dataflow == LinearDataflow::lanes) return choose_lanes(problem, gpu);
  if (dataflow == LinearDataflow::tables) return choose_tables(problem);
  if (dataflow == LinearDataflow::slices) return choose_slices(problem, gpu);
  const auto plan = dataflow == LinearDataflow::fragments ? choose_fragments(problem, gpu)
                                                          : choose_warpgroups(problem, gpu);
  return plan.value_or(LinearPlan{.dataflow = dataflow, .outputs_per_warp = 16});
}

}  // namespace vqgen
