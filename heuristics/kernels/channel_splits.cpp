#include "heuristics/kernels/channel_splits.h"

#include <algorithm>

namespace vqgen {
namespace {

double bytes_moved(const SplitTraffic& traffic, int splits) {
  return traffic.codebook_bytes / std::min(splits, traffic.units) +
         traffic.reduction_bytes * splits;
}

// The codebooks that serve one head, loaded by each of the blocks.
SplitTraffic split_traffic(const AttentionDecode& op, const VqFormat& format, std::int64_t blocks,
                           double reduction_bytes) {
  const int units =
      format.scope == Scope::channel_group ? op.shape.head_dim / format.channels_per_group() : 1;
  const double book = 2.0 * format.residuals * format.entries() * format.vector_size;
  return {static_cast<double>(blocks) * units * book, reduction_bytes, units};
}

// One fp32 score of each token and query head.
double score_bytes(const AttentionDecode& op) {
  return 4.0 * op.shape.batch * op.shape.query_heads * static_cast<double>(op.shape.tokens);
}

}  // namespace

int round_split(const SplitTraffic& traffic, std::span<const int> feasible) {
  return *std::min_element(feasible.begin(), feasible.end(), [&](int a, int b) {
    const double with_a = bytes_moved(traffic, a);
    const double with_b = bytes_moved(traffic, b);
    return with_a != with_b ? with_a < with_b : a < b;
  });
}

SplitTraffic key_split_traffic(const AttentionDecode& op, std::int64_t blocks) {
  return split_traffic(op, op.keys, blocks, 2 * score_bytes(op));  // written, and read once
}

SplitTraffic value_split_traffic(const AttentionDecode& op, std::int64_t blocks, int key_splits) {
  return split_traffic(op, op.values, blocks, key_splits * score_bytes(op));
}

}  // namespace vqgen
