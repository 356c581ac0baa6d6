#include <algorithm>
#include <bit>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/ops/linear.h"
#include "heuristics/placement/place.h"

namespace vqgen {
namespace {

// Sets the longest chunk of whole runs whose x a thread fetches `steps` rows of a step of, and the
// splits that give each multiprocessor a block; false where check() accepts none.
bool fit_chunk(LinearPlan& plan, const Problem& problem, const GpuSpec& gpu, int steps) {
  const Linear& op = *as_linear(problem);
  const vq::LinearConfig config = kernel_config(op, plan);
  const int run = vq::run_columns(config);
  const std::int64_t most =
      std::clamp<std::int64_t>(std::int64_t{32} * steps * plan.threads / plan.rows_per_block / run,
                               1, ceil_div(op.shape.in_features, run));
  const std::int64_t blocks = ceil_div(op.shape.out_features, vq::outputs_per_block(config)) *
                              ceil_div(op.shape.rows, plan.rows_per_block);
  for (std::int64_t runs = most; runs >= 1; --runs) {
    plan.chunk_columns = static_cast<int>(runs * run);
    plan.splits = static_cast<int>(std::clamp<std::int64_t>(
        gpu.sms / blocks, 1, ceil_div(op.shape.in_features, plan.chunk_columns)));
    for (const bool near : {true, false}) {
      plan.codebook = near ? all_shared(op.weights.entries()) : all_global();
      if (check(plan, problem, gpu).ok) return true;
    }
  }
  return false;
}

}  // namespace

int warpgroup_rows(int rows) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::clamp(rows, 8, 256))));
}

std::optional<LinearPlan> choose_warpgroups(const Problem& problem, const GpuSpec& gpu) {
  const Linear& op = *as_linear(problem);
  LinearPlan plan{.dataflow = LinearDataflow::warpgroups, .outputs_per_warp = 16};
  plan.rows_per_block = warpgroup_rows(op.shape.rows);
  for (const int threads : {512, 256, 128}) {
    plan.threads = threads;
    for (const int words : {4, 2, 1}) {
      plan.code_words = words;
      for (const int steps : {2, 1}) {
        if (!fit_chunk(plan, problem, gpu, steps)) continue;
        return std::get<LinearPlan>(with_copies_where_they_win(plan, problem, gpu));
      }
    }
  }
  return std::nullopt;
}

}  // namespace vqgen
