#include "heuristics/ops/gemv.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/kernel_config.h"
#include "heuristics/placement.h"

namespace vqgen {
namespace {

// Columns staged at once: the longest power-of-two multiple (or part) of the codebook's extent that
// keeps rows x columns fp32 within 16 KB.
int chunk_columns(const Gemv& op, const GemvPlan& plan) {
  constexpr std::int64_t kStagedFloats = 4096;
  const std::int64_t budget = kStagedFloats / op.shape.rows;
  const std::int64_t unit = kernel_config(op, plan).unit_columns;
  const std::int64_t v = op.weights.vector_size;
  if (unit >= op.shape.in_features || unit > budget) {
    // Within one unit: a power of two that divides the unit, or the unit is the whole row.
    std::int64_t chunk =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(budget)));
    if (unit < op.shape.in_features) chunk = std::gcd(chunk, unit);
    return static_cast<int>(std::min(std::max(chunk, v), op.shape.in_features));
  }
  return static_cast<int>(
      unit * static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(budget / unit))));
}

// Outputs a warp: as the default, halved until a block's outputs divide the rows of a tile.
void fit_tile_rows(const Gemv& op, GemvPlan& plan) {
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

GemvPlan choose_gemv(const Gemv& op, const GpuSpec& gpu) {
  GemvPlan plan;
  fit_tile_rows(op, plan);
  plan.chunk_columns = chunk_columns(op, plan);
  place_codebooks(plan, op, gpu);
  return plan;
}

}  // namespace vqgen
