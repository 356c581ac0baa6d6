// The nearest of the known names.
#include "core/suggest.h"

#include <gtest/gtest.h>

#include <vector>

namespace vqgen {
namespace {

const std::vector<std::string> kNames{"a100",    "h100", "h200",     "--calibration",
                                      "cq-4c8b", "x",    "kv_heads", "query_heads"};

TEST(Suggest, TheNearestName) {
  EXPECT_EQ(did_you_mean("h20", kNames), "; did you mean 'h200'?") << "a letter dropped";
  EXPECT_EQ(did_you_mean("h2000", kNames), "; did you mean 'h200'?") << "one too many";
  EXPECT_EQ(did_you_mean("2h00", kNames), "; did you mean 'h200'?") << "two swapped";
  EXPECT_EQ(did_you_mean("H200", kNames), "; did you mean 'h200'?") << "in another case";
  EXPECT_EQ(did_you_mean("h300", kNames), "; did you mean 'h100'?") << "the first of equals";
  EXPECT_EQ(did_you_mean("q_heads", kNames), "; did you mean 'query_heads'?") << "cut short";
  const std::vector<std::string> formats{"aqlm-2x8i8", "aqlm-2x8"};
  EXPECT_EQ(did_you_mean("aqlm2x8", formats), "; did you mean 'aqlm-2x8'?") << "nearer than cut";
  EXPECT_EQ(did_you_mean("--callibratoin", kNames), "; did you mean '--calibration'?");
}

TEST(Suggest, NoneThatIsFar) {
  for (const char* given : {"", "t4", "frobnicate", "--cat", "y"}) {
    EXPECT_EQ(did_you_mean(given, kNames), "") << given;
  }
  EXPECT_EQ(did_you_mean(std::string(1 << 20, 'h'), kNames), "");
  EXPECT_EQ(did_you_mean("h200", {}), "");
}

TEST(Suggest, ANameThatHoldsWhatIsGiven) {
  EXPECT_EQ(did_you_mean("--cal", kNames), "; did you mean '--calibration'?");
  EXPECT_EQ(did_you_mean("4C8", kNames), "; did you mean 'cq-4c8b'?");
  const std::vector<std::string> both{"my-int4", "int4-keys"};
  EXPECT_EQ(did_you_mean("int4", both), "; did you mean 'int4-keys'?") << "begins with it";
}

TEST(Suggest, ListsAreShort) {
  EXPECT_EQ(few_of(kNames), "a100, h100, h200, --calibration, cq-4c8b, x, kv_heads, query_heads");
  std::vector<std::string> nine = kNames;
  nine.emplace_back("last");
  EXPECT_EQ(few_of(nine), "a100, h100, h200, --calibration, cq-4c8b, x, kv_heads and 2 more");
  EXPECT_EQ(suggest_then("h20", kNames), "; did you mean 'h200'? Else ");
  EXPECT_EQ(suggest_then("frobnicate", kNames), "; ");
}

TEST(Suggest, SameButCase) {
  EXPECT_TRUE(same_but_case("H200", "h200"));
  EXPECT_TRUE(same_but_case("", ""));
  EXPECT_FALSE(same_but_case("h200", "h20"));
  EXPECT_FALSE(same_but_case("h200", "h201"));
  EXPECT_FALSE(same_but_case("@", "`")) << "which differ in that bit";
}

}  // namespace
}  // namespace vqgen
