// How many runs are timed: all if they are short, few if they are long.
#include "runtime/backend/backend.h"

#include <gtest/gtest.h>

namespace vqgen {
namespace {

std::size_t runs(int replays, double us) {
  return timed_runs(replays, [&] { return us; }).size();
}

TEST(TimedRuns, AreAllOfShortOnes) {
  EXPECT_EQ(runs(9, 10), 9u);
  EXPECT_EQ(runs(9, kEnoughTimedUs / 9), 9u);
  EXPECT_EQ(runs(1, 10), 1u);
}

TEST(TimedRuns, AreFewOfLongOnes) {
  EXPECT_EQ(runs(9, kEnoughTimedUs), 3u);
  EXPECT_EQ(runs(9, kEnoughTimedUs / 4), 4u);
  EXPECT_EQ(runs(2, kEnoughTimedUs), 2u);
}

TEST(TimedRuns, AreInTheirOrder) {
  double us = 0;
  EXPECT_EQ(timed_runs(3, [&] { return ++us; }), (std::vector<double>{1, 2, 3}));
}

}  // namespace
}  // namespace vqgen
