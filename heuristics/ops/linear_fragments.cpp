#include <algorithm>
#include <bit>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/ops/linear.h"
#include "heuristics/placement/place.h"

namespace vqgen {
namespace {

constexpr int kWarpsPerSm = 16;  // resident at once: enough loads in flight

// How many warps should share the columns of one output tile, for the whole GPU to be busy.
std::int64_t column_shares(const Linear& op, const LinearPlan& plan, const GpuSpec& gpu) {
  const std::int64_t tiles = ceil_div(op.shape.out_features, plan.outputs_per_warp) *
                             ceil_div(op.shape.rows, plan.rows_per_block);
  return ceil_div(std::int64_t{kWarpsPerSm} * gpu.sms, tiles);
}

// Sets chunk and split so that `shares` warps along the columns have work; false where the chunk
// fits no codebook unit or the block no shared memory.
bool fit_chunk(LinearPlan& plan, const Problem& problem, const GpuSpec& gpu, std::int64_t shares) {
  const Linear& op = *as_linear(problem);
  const int run = vq::run_columns(kernel_config(op, plan));
  constexpr std::int64_t kStagedBytes = 32768;
  const std::int64_t most = std::clamp<std::int64_t>(kStagedBytes / (2 * plan.rows_per_block) / run,
                                                     1, ceil_div(op.shape.in_features, run));
  for (std::int64_t runs = most; runs >= 1; --runs) {
    plan.chunk_columns = static_cast<int>(runs * run);
    const std::int64_t chunks = ceil_div(op.shape.in_features, plan.chunk_columns);
    const auto along = static_cast<unsigned>(std::min({shares, runs, std::int64_t{8}}));
    plan.warps_along_columns = static_cast<int>(std::bit_floor(along));
    plan.splits = static_cast<int>(even_splits(chunks, ceil_div(shares, plan.warps_along_columns)));
    for (const bool near : {true, false}) {
      plan.codebook = near ? all_shared(op.weights.entries()) : all_global();
      if (check(plan, problem, gpu).ok) return true;
    }
  }
  return false;
}

}  // namespace

std::optional<LinearPlan> choose_fragments(const Problem& problem, const GpuSpec& gpu) {
  const Linear& op = *as_linear(problem);
  LinearPlan plan{.dataflow = LinearDataflow::fragments, .outputs_per_warp = 16};
  plan.fragment_rows = op.shape.rows <= 4 ? 4 : 8;
  plan.rows_per_block = static_cast<int>(
      std::min<std::int64_t>(64, ceil_div(op.shape.rows, plan.fragment_rows) * plan.fragment_rows));
  const std::int64_t shares = column_shares(op, plan, gpu);
  for (const int threads : {256, 128, 64, 32}) {
    plan.threads = threads;
    for (const int words : {4, 2, 1}) {
      plan.code_words = words;
      if (fit_chunk(plan, problem, gpu, shares)) return plan;
    }
  }
  return std::nullopt;
}

LinearPlan choose_linear(const Problem& problem, const GpuSpec& gpu) {
  if (const auto plan = choose_fragments(problem, gpu)) {
    return std::get<LinearPlan>(with_copies_where_they_win(*plan, problem, gpu));
  }
  return choose_lanes(problem, gpu);
}

}  // namespace vqgen
