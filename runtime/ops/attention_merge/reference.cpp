#include "runtime/ops/attention_merge/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/verify/row_decoder.h"

namespace vqgen {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Merges one row and head, number `item` of all.
void merge_item(const MergeData& data, std::size_t item, AttentionResult& result) {
  std::vector<const MergePart*> counts;
  double most = -kInfinity;
  bool finite = true;
  for (const MergePart& each : data.parts) {
    const double lse = static_cast<double>(each.lse[item]);
    if (lse == -kInfinity) continue;
    counts.push_back(&each);
    finite = finite && std::isfinite(lse);
    most = std::max(most, lse);
  }
  if (counts.empty()) return;
  if (!finite) most = std::numeric_limits<double>::quiet_NaN();
  double total = 0;
  for (const MergePart* each : counts) {
    total += std::exp(static_cast<double>(each->lse[item]) - most);
  }
  result.lse[item] = most + std::log(total);
  const auto dim = static_cast<std::size_t>(data.head_dim);
  for (std::size_t i = item * dim; i < (item + 1) * dim; ++i) {
    for (const MergePart* each : counts) {
      const double weight = std::exp(static_cast<double>(each->lse[item]) - most) / total;
      result.out[i] += weight * element_value(data.dtype, each->out[i]);
    }
  }
}

}  // namespace

AttentionResult reference_merge(const MergeData& data) {
  const auto items = static_cast<std::size_t>(data.rows * data.heads);
  AttentionResult result{std::vector<double>(items * static_cast<std::size_t>(data.head_dim)),
                         std::vector<double>(items, -kInfinity)};
  for (std::size_t item = 0; item < items; ++item) merge_item(data, item, result);
  return result;
}

}  // namespace vqgen
