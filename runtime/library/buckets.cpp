#include <algorithm>

#include "runtime/library/record.h"
#include "runtime/ops/ops.h"

namespace vqgen::library {
namespace {

// The sizes in descending order, the problem's own first.
std::vector<std::int64_t> sizes_of(const Problem& problem) {
  const std::int64_t own = size_of(problem);
  const SizeSteps steps =
      std::visit([]<class Op>(const Op& op) { return OpTraits<Op>::size_steps(op); }, problem);
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = steps.least; steps.factor > 0 && size < own; size *= steps.factor) {
    sizes.push_back(size);
  }
  sizes.push_back(own);
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

}  // namespace

std::int64_t size_of(const Problem& problem) {
  return std::visit([]<class Op>(const Op& op) { return OpTraits<Op>::size(op); }, problem);
}

Problem resized(Problem problem, std::int64_t size) {
  return std::visit([&]<class Op>(Op& op) { return OpTraits<Op>::resized(std::move(op), size); },
                    problem);
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
