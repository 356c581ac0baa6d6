// Dataflow slices of the products.
#include "core/ceil_div.h"
#include "core/kernel_config.h"
#include "heuristics/ops/linear.h"
#include "heuristics/space/candidates.h"

namespace vqgen {

// How many slices, chunks, warps and rows; outputs then fill one or two waves of blocks. No
// placement says where the entries stand.
void add_linear_slices(Candidates& to, SpacePlacement allowed) {
  const Linear& op = *as_linear(to.problem());
  if (allowed != SpacePlacement::any || !wants_slices(op, to.gpu())) return;
  LinearPlan plan{.dataflow = LinearDataflow::slices};
  for (const int rows : {4, 8}) {
    plan.rows_per_block = rows;
    for (int words = slice_code_words(op); words > 0; words /= 2) {
      plan.code_words = words;
      const int whole = slice_chunk(op, plan);
      for (const int parts : {1, 2}) {
        const int step = vq::slice_step_columns(kernel_config(op, plan));
        plan.chunk_columns = (whole / step + parts - 1) / parts * step;
        const auto chunks =
            static_cast<int>(ceil_div(op.shape.in_features, std::int64_t{plan.chunk_columns}));
        for (int slices = 1; slices * 2 <= op.weights.held_bytes(); slices *= 2) {
          plan.splits = chunks * op.weights.residuals * slices;
          for (const int threads : {256, 384, 512, 640, 768, 1024}) {
            plan.threads = threads;
            const int outputs = slice_outputs(op, plan, to.gpu());
            for (const int waves : {1, 2}) {
              plan.outputs_per_warp =
                  static_cast<int>(ceil_div(outputs, vq::kSliceGroup * waves)) * vq::kSliceGroup;
              to.add(plan);
            }
          }
        }
      }
    }
    if (rows >= op.shape.rows) break;
  }
}

}  // namespace vqgen
