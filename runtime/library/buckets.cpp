#include <algorithm>

#include "runtime/library/record.h"

namespace vqgen::library {
namespace {

constexpr std::int64_t kLeastTokens = 1024;  // below, a plan is not worth a kernel of its own

// Descending, the problem's own first.
std::vector<std::int64_t> sizes_of(const Problem& problem) {
  const bool tokens = std::holds_alternative<AttentionDecode>(problem) ||
                      std::holds_alternative<KvDequantize>(problem);
  const std::int64_t own = size_of(problem);
  const Linear* const product = as_linear(problem);
  const bool grouped = product != nullptr && product->shape.grouped();
  if (std::holds_alternative<KvAppend>(problem) ||
      std::holds_alternative<AttentionMerge>(problem) || as_scalar(problem) != nullptr || grouped) {
    return {own};
  }
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = tokens ? kLeastTokens : 1; size < own; size *= tokens ? 4 : 2) {
    sizes.push_back(size);
  }
  sizes.push_back(own);
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

}  // namespace

std::int64_t size_of(const Problem& problem) {
  const auto own = []<class Op>(const Op& op) -> std::int64_t {
    if constexpr (std::is_base_of_v<Linear, Op>) {
      return op.shape.call_rows();
    } else if constexpr (requires { op.shape.rows; }) {
      return op.shape.rows;
    } else {
      return op.shape.tokens;
    }
  };
  return std::visit(own, problem);
}

Problem resized(Problem problem, std::int64_t size) {
  const auto with_size = [&]<class Op>(Op& op) -> Problem {
    if constexpr (std::is_base_of_v<Linear, Op>) {
      if (op.shape.grouped()) return std::move(op);  // one size
      op.shape.rows = static_cast<int>(size);
      if (std::is_same_v<Op, Gemm> && op.shape.rows < Gemm::kLeastRows) return Gemv{op};
    } else if constexpr (requires { op.shape.rows; }) {
      op.shape.rows = size;
    } else {
      op.shape.tokens = size;
    }
    return std::move(op);
  };
  return std::visit(with_size, problem);
}

std::vector<BucketPlan> plan_buckets(const Config& config, const GpuSpec& gpu, int max_buckets,
                                     const PlanOptions& options, std::span<const BucketPlan> like) {
  std::vector<std::int64_t> sizes;  // descending
  for (const BucketPlan& each : like) sizes.insert(sizes.begin(), each.most);
  if (like.empty()) sizes = sizes_of(config.problem);
  const bool one_grid = std::holds_alternative<AttentionDecode>(config.problem);
  std::vector<BucketPlan> buckets;
  for (const std::int64_t size : sizes) {
    if (static_cast<int>(buckets.size()) == max_buckets) break;
    BucketPlan bucket{.most = size, .config = config, .plan = {}};
    bucket.config.problem = resized(config.problem, size);
    try {
      Planned planned = plan_with(bucket.config, gpu, access_counts_of(bucket.config), options);
      bucket.plan = std::move(planned.plan);
      bucket.from = std::move(planned.from);
    } catch (const Error& error) {
      if (buckets.empty() || error.kind() != ErrorKind::infeasible) throw;
      continue;
    }
    if (one_grid && !buckets.empty() && bucket.plan == buckets.back().plan) continue;
    buckets.push_back(std::move(bucket));
  }
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

}  // namespace vqgen::library
