#include "quantizer/name_pattern.h"

#include <gtest/gtest.h>

namespace vqgen {
namespace {

using Texts = std::vector<std::string>;

TEST(NamePattern, StarsTakeTheShortestTextThatFits) {
  EXPECT_EQ(match_pattern("layer*.k", "layer12.k"), Texts{"12"});
  EXPECT_EQ(match_pattern("*.*.weight", "blocks.0.q.weight"), (Texts{"blocks", "0.q"}));
  EXPECT_EQ(match_pattern("a*b*c", "abxbc"), (Texts{"", "xb"}));
  EXPECT_EQ(match_pattern("*", ""), Texts{""});
  EXPECT_EQ(match_pattern("layer0.k", "layer0.k"), Texts{});
}

TEST(NamePattern, TheWholeNameMustMatch) {
  EXPECT_FALSE(match_pattern("layer*.k", "layer0.kk"));
  EXPECT_FALSE(match_pattern("layer*.k", "xlayer0.k"));
  EXPECT_FALSE(match_pattern("layer0.k", "layer0.v"));
  EXPECT_FALSE(match_pattern("", "a"));
}

TEST(NamePattern, ManyStarsTakeNoExponentialTime) {
  std::string pattern;
  for (int i = 0; i < 60; ++i) pattern += "*a";
  EXPECT_FALSE(match_pattern(pattern + "b", std::string(400, 'a')));
}

TEST(NamePattern, FillsStarsInOrder) {
  EXPECT_EQ(fill_pattern("layer*.v", {"12"}), "layer12.v");
  EXPECT_EQ(fill_pattern("*/*", {"a", "b"}), "a/b");
  EXPECT_EQ(star_count("a*b*"), 2u);
}

TEST(NamePattern, AnItemIsNamedUpToTheLastDot) {
  EXPECT_EQ(item_name("layer0.k"), "layer0");
  EXPECT_EQ(item_name("blocks.0.q.weight"), "blocks.0.q");
  EXPECT_EQ(item_name("weight"), "weight");
}

}  // namespace
}  // namespace vqgen
