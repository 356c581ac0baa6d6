// Linear layers of more rows of x than a gemm takes. Either a gemm is launched for each part of the
// rows; or a part of the weights at a time becomes dense, by a weight_dequantize, for the GEMM of
// another library.
#pragma once

#include <optional>

#include "core/gpu/gpu_spec.h"
#include "core/plan/plan.h"
#include "heuristics/cost.h"

namespace vqgen {

// Dense weights that there are at a time, at most: a GEMM finds them in L2.
inline constexpr std::int64_t kMostDenseBytes = std::int64_t{1} << 25;

struct ManyRows {
  std::int64_t from;  // rows of x from which dense weights are expected to be the faster way
  std::int64_t part;  // rows of the weights that are dense at a time
};

// Rows of such weights that are dense at a time: whole tiles of a GEMM, where there is room.
std::int64_t dense_part(const WeightRowsShape& shape);

// Expected of gemms by this plan. Nothing with experts, where launches are always the faster way,
// where weight_dequantize has no kernel, and where the cost of the plan or of a dense GEMM is not
// known: it is measured on GPUs with wgmma alone.
std::optional<ManyRows> many_rows(const Plan& plan, const Gemm& op, const GpuSpec& gpu,
                                  const CostProfile& coefficients = cost_profile());

}  // namespace vqgen
