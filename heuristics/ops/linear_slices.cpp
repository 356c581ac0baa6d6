// Rules of dataflow slices of the products.
#include <algorithm>
#include <array>

#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/ops/linear.h"

namespace vqgen {

bool wants_slices(const Linear& op, const GpuSpec& gpu) {
  constexpr std::int64_t kTimes = 4;
  const std::int64_t codebooks =
      std::int64_t{op.weights.residuals} * op.weights.entries() * op.weights.held_bytes();
  return op.weights.decoder == Decoder::table && codebooks * kTimes > gpu.shared_bytes_per_block;
}

int slice_code_words(const Linear& op) {
  const VqFormat& format = op.weights;
  const std::int64_t row =
      vq::row_words(op.shape.in_features, format.vector_size, format.residuals, format.index_bits);
  // Of a part of a word each load brings whole sub-vectors, however short it is.
  if (32 % (format.residuals * format.index_bits) != 0) return 0;
  return row % 4 == 0 ? 4 : row % 2 == 0 ? 2 : 1;
}

int slice_chunk(const Linear& op, const LinearPlan& plan) {
  const vq::LinearConfig config = kernel_config(op, plan);
  const std::int64_t step = vq::slice_step_columns(config);
  const std::int64_t columns = std::min<std::int64_t>(op.shape.in_features, config.unit_columns);
  return static_cast<int>(std::min(ceil_div(columns, step), (1 << 24) / step) * step);
}

int slice_outputs(const Linear& op, const LinearPlan& plan, const GpuSpec& gpu) {
  const std::int64_t of_one =
      ceil_div(op.shape.rows, plan.rows_per_block) * std::int64_t{plan.splits};
  const std::int64_t warps = std::max<std::int64_t>(1, gpu.sms / of_one) * (plan.threads / 32);
  const std::int64_t groups = ceil_div(op.shape.out_features, warps * vq::kSliceGroup);
  return static_cast<int>(std::min<std::int64_t>(4096, groups * vq::kSliceGroup));
}

LinearPlan choose_slices(const Problem& problem, const GpuSpec& gpu) {
  const Linear& op = *as_linear(problem);
  const VqFormat& format = op.weights;
  LinearPlan plan{.dataflow = LinearDataflow::slices, .rows_per_block = op.shape.rows <= 4 ? 4 : 8};
  constexpr std::array kThreads{640, 512, 256};  // 5 warps a scheduler were best
  for (const int threads : kThreads) {
    plan.threads = threads;
    for (int words = slice_code_words(op); words > 0; words /= 2) {
      plan.code_words = words;
      for (int slices = 1; slices == 1 || slices * 2 <= format.held_bytes(); slices *= 2) {
        plan.chunk_columns = slice_chunk(op, plan);
        plan.splits =
            static_cast<int>(ceil_div(op.shape.in_features, std::int64_t{plan.chunk_columns})) *
            format.residuals * slices;
        plan.outputs_per_warp = slice_outputs(op, plan, gpu);
        if (check(plan, problem, gpu).ok) return plan;
      }
    }
  }
  return plan;
}

}  // namespace vqgen
