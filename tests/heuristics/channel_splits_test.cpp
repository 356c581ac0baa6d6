// The split of the channels dataflow: the formula, its rounding, and the traffic that it weighs.
#include "heuristics/kernels/channel_splits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace vqgen {
namespace {

TEST(ChannelSplits, RoundingMovesLeast) {
  const std::array feasible{1, 2, 4, 8, 16, 32};
  EXPECT_EQ(round_split({1600, 100, 32}, feasible), 4);
  EXPECT_EQ(round_split({2 * 100, 100, 32}, feasible), 1);  // 300 bytes with 1 and with 2
  EXPECT_EQ(round_split({2.01 * 100, 100, 32}, feasible), 2);
  EXPECT_EQ(round_split({1600, 100, 1}, feasible), 1);  // one codebook: nothing to save
  EXPECT_EQ(round_split({1e12, 1, 8}, feasible), 8);
  EXPECT_EQ(round_split({1e12, 1, 32}, std::array{1, 3}), 3);
}

// Over many ratios no feasible split moves less, and the rounded one is next to the root of the
// ratio, at which the sum is least.
TEST(ChannelSplits, RoundingIsOptimalAndNearTheBest) {
  const std::vector<int> feasible{1, 2, 4, 8, 16, 32, 64};
  for (double ratio = 0.01; ratio < 1e5; ratio *= 1.07) {
    const SplitTraffic traffic{ratio * 1e6, 1e6, 64};
    const int split = round_split(traffic, feasible);
    const auto moved = [&](int s) { return ratio / s + s; };
    for (const int other : feasible) EXPECT_LE(moved(split), moved(other)) << ratio;
    const double best = std::clamp(std::sqrt(ratio), 1.0, 64.0);
    EXPECT_LT(split, 2 * best + 1e-9) << ratio;
    EXPECT_GT(2 * split, best - 1e-9) << ratio;
  }
}

AttentionDecode cq() {
  AttentionDecode op;
  op.shape = {.batch = 2, .query_heads = 32, .kv_heads = 8, .head_dim = 128, .tokens = 4096};
  op.keys = op.values = {.vector_size = 4, .index_bits = 8, .scope = Scope::channel_group};
  return op;
}

TEST(ChannelSplits, TrafficCountsCodebooksAndScores) {
  const AttentionDecode op = cq();
  const SplitTraffic keys = key_split_traffic(op, 264);
  EXPECT_EQ(keys.units, 32);
  EXPECT_DOUBLE_EQ(keys.codebook_bytes, 264.0 * 32 * 256 * 4 * 2);
  EXPECT_DOUBLE_EQ(keys.reduction_bytes, 2.0 * 4 * 2 * 32 * 4096);
  const SplitTraffic values = value_split_traffic(op, 264, 4);
  EXPECT_DOUBLE_EQ(values.codebook_bytes, keys.codebook_bytes);
  EXPECT_DOUBLE_EQ(values.reduction_bytes, 4.0 * 4 * 2 * 32 * 4096);
  AttentionDecode whole = op;
  whole.keys.scope = Scope::head;
  EXPECT_EQ(key_split_traffic(whole, 264).units, 1);
  EXPECT_DOUBLE_EQ(key_split_traffic(whole, 264).codebook_bytes, 264.0 * 256 * 4 * 2);
}

TEST(ChannelSplits, LongerSequencesAreSplitLess) {
  AttentionDecode op = cq();
  int before = 33;
  for (const std::int64_t tokens : {1024, 4096, 16384, 65536}) {
    op.shape.tokens = tokens;
    const int best = round_split(key_split_traffic(op, 264), std::array{1, 2, 4, 8, 16, 32});
    EXPECT_LT(best, before) << tokens;
    before = best;
  }
}

}  // namespace
}  // namespace vqgen
