// The table of the E8P lattice, by the counts and laws that the paper gives.
#include "core/format/e8p.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

namespace vqgen {
namespace {

std::vector<std::vector<float>> entries() {
  const std::vector<float> table = e8p_table();
  std::vector<std::vector<float>> result;
  for (auto at = table.begin(); at != table.end(); at += 8) result.emplace_back(at, at + 8);
  return result;
}

double norm_of(const std::vector<float>& entry) {
  double sum = 0;
  for (const float value : entry) sum += double{value} * value;
  return sum;
}

TEST(E8pTable, HoldsAllVectorsOfNormUpTo10And29Of12) {
  ASSERT_EQ(e8p_table().size(), 256u * 8);
  std::map<double, int> of_norm;
  double before = 0;
  for (const auto& entry : entries()) {
    ++of_norm[norm_of(entry)];
    EXPECT_GE(norm_of(entry), before) << "hot entries come first";
    before = norm_of(entry);
    for (const float value : entry) EXPECT_TRUE(is_e8p_element(value)) << value;
  }
  // Number of entries by norm: C(8, k) ways to place k elements 3/2, and one 5/2 with none or one
  // 3/2.
  EXPECT_EQ(of_norm, (std::map<double, int>{
                         {2, 1}, {4, 8}, {6, 28}, {8, 56 + 8}, {10, 70 + 8 * 7}, {12, 29}}));
  const auto all = entries();
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), 256u);
}

TEST(E8pTable, TheLast29AreTheSmallestWithFive3Halves) {
  const auto all = entries();
  const std::vector<float> first{0.5, 0.5, 0.5, 1.5, 1.5, 1.5, 1.5, 1.5};
  EXPECT_EQ(all[227], first);
  std::vector<float> next = first;
  for (std::size_t i = 227; i < 256; ++i) {
    EXPECT_EQ(all[i], next) << i;
    std::next_permutation(next.begin(), next.end());
  }
}

TEST(E8pTable, ElementsAreHalfIntegersUpTo7Halves) {
  for (const float value : {0.5f, 1.5f, 2.5f, 3.5f}) EXPECT_TRUE(is_e8p_element(value)) << value;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {0.0f, 0.25f, 1.0f, 3.0f, 4.5f, -0.5f, 1e30f, kNan}) {
    EXPECT_FALSE(is_e8p_element(value)) << value;
  }
}

}  // namespace
}  // namespace vqgen
