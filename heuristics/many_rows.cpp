#include "heuristics/many_rows.h"

#include <algorithm>
#include <cmath>

#include "core/ceil_div.h"
#include "heuristics/choose.h"

namespace vqgen {

std::int64_t dense_part(const WeightRowsShape& shape) {
  constexpr std::int64_t kTile = 256;  // rows of weights of a GEMM's block
  const std::int64_t room = std::max<std::int64_t>(kMostDenseBytes / (2 * shape.in_features), 1);
  return std::min(room < kTile ? room : room / kTile * kTile, shape.out_features);
}

std::optional<ManyRows> many_rows(const Plan& plan, const Gemm& op, const GpuSpec& gpu,
                                  const CostProfile& coefficients) {
  const DenseGemmCost& cost = coefficients.dense_gemm;
  if (op.shape.grouped() || !gpu.warpgroup_products || cost.operations == 0) return std::nullopt;
  WeightDequantize dense{op.dtype, {1, op.shape.out_features, op.shape.in_features}, op.weights};
  dense.shape.rows = dense_part(dense.shape);
  if (!check(Problem(dense)).ok) return std::nullopt;
  if (!check(propose(dense, gpu, {.chooser = Chooser::rules}), dense, gpu).ok) return std::nullopt;
  const auto launch = CostModel(op, gpu, {}, coefficients)(plan);
  if (!launch) return std::nullopt;
  const double clocks = gpu.sms * gpu.sm_clock_mhz;  // of all SMs, in a us
  const double elements =
      static_cast<double>(op.shape.out_features) * static_cast<double>(op.shape.in_features);
  const double parts = static_cast<double>(ceil_div(op.shape.out_features, dense.shape.rows));
  const double dequantize = parts * cost.part_us + 2 * elements / (cost.written_bytes * clocks);
  // What PyTorch's GEMM takes for the rows of one launch.
  const double gemm = 2.0 * op.shape.rows * elements / (cost.operations * clocks);
  if (gemm >= launch->us) return std::nullopt;
  const double from = std::ceil(op.shape.rows * dequantize / (launch->us - gemm));
  constexpr double kMost = 1 << 24;
  if (from > kMost) return std::nullopt;
  return ManyRows{std::max<std::int64_t>(static_cast<std::int64_t>(from), op.shape.rows + 1),
                  dense.shape.rows};
}

}  // namespace vqgen
