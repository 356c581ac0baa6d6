// Which profiles of a file belong to a config, and how items are merged into one.
#include "core/access/access_counts.h"

#include "core/access/access_counts_summary.h"
#include "tests/core/access_counts_samples.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

// A profile of a cache of two heads: 4 entries per head, one stage.
AccessCounts sample(const std::string& item, Operand operand, std::int64_t first) {
  AccessCounts profile = profile_of({{{first, 2, 1, 0}}, {{1, 1, 1, 1}}});
  profile.item = item;
  profile.operand = operand;
  return profile;
}

Problem problem() {
  const Json format = {{"vector_size", 4}, {"index_bits", 2}, {"scope", "head"}};
  Json json = attention_json();
  json["keys"] = json["values"] = format;
  return read_config(json, "c.json").problem;
}

TEST(AccessCountsMatch, TakesEachOperandsOwn) {
  const auto matched =
      match_access_counts({sample("a", Operand::values, 5), sample("a", Operand::weights, 1),
                           sample("a", Operand::keys, 3)},
                          problem(), "p.json");
  ASSERT_EQ(matched.size(), 2u);
  EXPECT_EQ(matched[0].operand, Operand::keys);
  EXPECT_EQ(matched[0].item, "a");
  EXPECT_EQ(matched[0].counts, (std::vector<std::int64_t>{3, 2, 1, 0, 1, 1, 1, 1}));
  EXPECT_EQ(matched[1].operand, Operand::values);
  EXPECT_EQ(matched[1].counts[0], 5);
}

TEST(AccessCountsMatch, ItemsCountTogether) {
  const auto matched =
      match_access_counts({sample("a", Operand::keys, 3), sample("b", Operand::keys, 90),
                           sample("b", Operand::values, 1)},
                          problem(), "p.json");
  EXPECT_EQ(matched[0].item, "2 items");
  EXPECT_EQ(matched[0].units, 4);
  EXPECT_EQ(matched[0].codebooks(), 4u);
  EXPECT_DOUBLE_EQ(share_below(matched[0], 1, Numbering::current), 95.0 / (6 + 4 + 93 + 4));
  EXPECT_EQ(summarise(matched[0]).accesses, 107);
}

TEST(AccessCountsMatch, SaysWhatDoesNotFit) {
  const AccessCounts keys = sample("a", Operand::keys, 3);
  const AccessCounts values = sample("a", Operand::values, 3);
  const auto refused = [](const std::vector<AccessCounts>& profiles, const Problem& of) {
    return message_of([&] { match_access_counts(profiles, of, "p.json"); });
  };
  expect_words(refused({keys}, problem()), {"p.json: holds no profile of values"});
  expect_words(refused({}, problem()),
               {"p.json: holds no profile of keys, which attention_decode"});
  expect_words(refused({keys}, read_config(gemv_json(), "c.json").problem),
               {"no profile of weights"});

  AccessCounts other = values;
  other.format.index_bits = 3;
  expect_words(refused({keys, other}, problem()),
               {"p.json: the profile of a.values is of format", "profile a bundle"});
  AttentionDecode heads = std::get<AttentionDecode>(problem());
  heads.shape.kv_heads = 4;
  expect_words(refused({keys, values}, heads), {"a.keys has 2 units", "shape has 4"});

  // Each number is within its bounds, but their sum is not.
  AccessCounts many = keys;
  many.counts[0] = kMostAccesses - 10;
  AccessCounts again = many;
  again.item = "b";
  expect_words(refused({many, again, values}, problem()), {"accesses to keys in all"});
}

}  // namespace
}  // namespace vqgen
