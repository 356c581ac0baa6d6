// The shared memory of a block of a product by lanes, and the shape of its launch.
#pragma once

#include <vq/kernels/linear_lanes/plan.h>
#include <vq/layout/linear.h>

namespace vq {

struct LinearLanesShared {
  CodebookShared codebook;
  i64 x;  // [block_rows][chunk_columns] fp32
  i64 total;
};

VQ_HD constexpr LinearLanesShared shared_layout(const LinearConfig<LinearLanes>& c) {
  LinearLanesShared at{};
  Carver carve;
  at.codebook = carve_codebook(c.weights, units_per_chunk(c), carve);
  at.x = carve(i64{block_rows(c)} * c.chunk_columns * 4);
  at.total = carve.next;
  return at;
}

VQ_HD constexpr CallShape call_shape(const LinearConfig<LinearLanes>& c) {
  return linear_shape(c, "linear_lanes", shared_layout(c).total, false);
}

}  // namespace vq
