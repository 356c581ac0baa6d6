// Profile files: what is written is read back, and inconsistent files are refused.
#include "core/access/access_counts.h"

#include <random>

#include "core/files/files.h"
#include "tests/core/access_counts_samples.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

// Two heads of two stages, three parts.
AccessCounts sample_profile() {
  return profile_of({{{5, 0, 2, 1}, {4, 1, 2, 1}, {0, 0, 7, 1}},
                     {{2, 2, 2, 2}, {0, 0, 0, 8}, {1, 2, 3, 2}},
                     {{8, 0, 0, 0}, {8, 0, 0, 0}, {8, 0, 0, 0}},
                     {{0, 1, 2, 5}, {3, 2, 2, 1}, {0, 0, 0, 0}}},
                    2);
}

Json file_of(const std::vector<AccessCounts>& profiles) {
  return parse_json(access_counts_text(profiles), "profile.json");
}

TEST(HotFirst, SortsByCountAndThenByNumber) {
  const std::vector<std::int64_t> counts{3, 9, 0, 9, 3, 3, 10, 0};
  EXPECT_EQ(hot_first(counts), (std::vector<std::uint32_t>{6, 1, 3, 0, 4, 5, 2, 7}));
  EXPECT_EQ(hot_first(std::vector<std::int64_t>(4, 7)), (std::vector<std::uint32_t>{0, 1, 2, 3}));
}

TEST(HotFirst, IsAPermutationThatFalls) {
  std::mt19937 random(3);
  for (const std::size_t size : {4u, 37u, 256u, 4096u}) {
    std::vector<std::int64_t> counts(size);
    for (std::int64_t& count : counts) count = static_cast<std::int64_t>(random() % 17);
    const std::vector<std::uint32_t> order = hot_first(counts);
    std::vector<int> seen(size, 0);
    for (std::size_t rank = 0; rank < size; ++rank) {
      ASSERT_LT(order[rank], size);
      ++seen[order[rank]];
      if (rank == 0) continue;
      const auto before = std::pair(-counts[order[rank - 1]], order[rank - 1]);
      EXPECT_LT(before, std::pair(-counts[order[rank]], order[rank]));
    }
    EXPECT_EQ(seen, std::vector<int>(size, 1));
  }
}

TEST(AccessCountsFile, GivesBackWhatWasWritten) {
  AccessCounts other = sample_profile();
  other.operand = Operand::values;
  AccessCounts odd = sample_profile();
  odd.item = "a \"name\" \n with & <signs>";
  odd.counts[2] +=  // the hottest of its codebook
      8'000'000'000'000'000;
  odd.parts.accesses[0] += 8'000'000'000'000'000;
  odd.parts.counts[0] += 8'000'000'000'000'000;
  const std::vector<AccessCounts> profiles{sample_profile(), other, odd};
  EXPECT_EQ(read_access_counts(file_of(profiles), "profile.json"), profiles);
  EXPECT_EQ(read_access_counts(file_of({}), "profile.json"), std::vector<AccessCounts>{});
  EXPECT_EQ(access_counts_text(profiles), access_counts_text(profiles));

  const TempFolder folder;
  publish_text(folder.path() / "p.json", access_counts_text(profiles));
  EXPECT_EQ(read_access_counts(folder.path() / "p.json"), profiles);
}

TEST(AccessCountsFile, CutAnywhereIsRefused) {
  const std::string text = access_counts_text({sample_profile()});
  for (std::size_t size = 0; size + 1 < text.size(); size += 7) {
    const TempFolder folder;
    publish_text(folder.path() / "cut.json", text.substr(0, size));
    expect_words(message_of([&] { read_access_counts(folder.path() / "cut.json"); }), {"cut.json"});
  }
}

struct Lie {
  const char* name;
  std::vector<Edit> edits;
  std::vector<std::string> words;
};

class AccessCountsLie : public testing::TestWithParam<Lie> {};

TEST_P(AccessCountsLie, IsRefusedWithFileAndPlace) {
  const Json json = edited(file_of({sample_profile(), sample_profile()}), [] {
    std::vector<Edit> edits = GetParam().edits;
    edits.push_back({"/profiles/1/item", "\"layer1\""});
    return edits;
  }());
  const std::string message = message_of([&] { read_access_counts(json, "profile.json"); });
  expect_words(message, {"profile.json: "});
  expect_words(message, GetParam().words);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, AccessCountsLie,
    testing::Values(
        Lie{"newer",
            {{"/schema", "2"}, {"/future", "1"}},
            {"/schema: is format version 2", "knows up to 1; upgrade vqgen"}},
        Lie{"schema", {{"/schema", "[1]"}}, {"/schema: must be a whole number"}},
        Lie{"unknown", {{"/profiles/0/hot", "1"}}, {"/profiles/0", "unknown field 'hot'"}},
        Lie{"missing", {{"/profiles/0/counts", ""}}, {"/profiles/0", "'counts' is missing"}},
        Lie{"no_parts", {{"/profiles/0/parts", ""}}, {"/profiles/0", "'parts' is missing"}},
        Lie{"operand", {{"/profiles/0/operand", "\"query\""}}, {"none of keys, values, weights"}},
        Lie{"negative", {{"/profiles/0/counts/3", "-1"}}, {"/profiles/0/counts/3", "from 0"}},
        Lie{"fraction", {{"/profiles/1/counts/3", "1.5"}}, {"/profiles/1/counts/3", "whole"}},
        Lie{"huge", {{"/profiles/0/counts/3", "1e19"}}, {"/profiles/0/counts/3", "from 0"}},
        Lie{"null", {{"/profiles/0/counts/3", "null"}}, {"/profiles/0/counts/3", "not null"}},
        Lie{"index_bits", {{"/profiles/0/format/index_bits", "19"}}, {"2 to 18"}}),
    [](const auto& test) { return test.param.name; });

const char* const kFull = "9000000000000000";

INSTANTIATE_TEST_SUITE_P(
    Sizes, AccessCountsLie,
    testing::Values(
        Lie{"entries", {{"/profiles/0/entries", "8"}}, {"/profiles/0/entries: is 8", "has 4"}},
        Lie{"entries_of_format",
            {{"/profiles/0/format/index_bits", "3"}},
            {"/profiles/0/entries: is 4 where the format has 8", "count its accesses again"}},
        Lie{"num_codebooks",
            {{"/profiles/0/num_codebooks", "1"}},
            {"/num_codebooks: is 1", "has 2"}},
        Lie{"units", {{"/profiles/1/units", "3"}}, {"/profiles/1/counts: 16 numbers", "3 units"}},
        // 2^62 + 2 units of 2 stages of 4 entries are 16 numbers after an overflow.
        Lie{"units_that_wrap", {{"/profiles/0/units", "4611686018427387906"}}, {"/units: "}},
        Lie{"units_of_scope",
            {{"/profiles/0/format/scope", "\"tensor\""}},
            {"/units: is 2 where the format has 1"}},
        Lie{"too_many", {{"/profiles/0/counts/-", "0"}}, {"/counts: 17 numbers are not 2 units"}},
        Lie{"none", {{"/profiles/0/counts", "[]"}}, {"/counts: 0 numbers"}},
        Lie{"number", {{"/profiles/0/parts/number", "4"}}, {"/parts/accesses: holds 12", "16"}},
        Lie{"no_number", {{"/profiles/0/parts/number", "0"}}, {"/parts/number: ", "1 to 1024"}},
        Lie{"hot", {{"/profiles/0/parts/hot", "3"}}, {"/parts/hot: is 3, no power of two up to 4"}},
        Lie{"more_hot", {{"/profiles/0/parts/hot", "8"}}, {"/parts/hot: is 8"}},
        Lie{"other_hot", {{"/profiles/0/parts/hot", "4"}}, {"/parts/counts: holds 24", "48"}},
        Lie{"no_accesses", {{"/profiles/0/parts/accesses", "[]"}}, {"/parts/accesses: holds 0"}},
        Lie{"more_common", {{"/profiles/0/parts/common/-", "0"}}, {"/parts/common: holds 25"}},
        Lie{"last_sum",
            {{"/profiles/0/counts/15", kFull}},
            {"/counts: ", "at most 9000000000000000"}},
        Lie{"sum", {{"/profiles/0/counts/0", kFull}}, {"/counts: ", "at most 9000000000000000"}}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Sums, AccessCountsLie,
    testing::Values(
        Lie{"whole",
            {{"/profiles/0/counts/5", "9"}},
            {"the parts of codebook 1 are not its whole"}},
        Lie{"part", {{"/profiles/0/parts/accesses/7", "9"}}, {"the parts of codebook 2"}},
        Lie{"part_sum",
            {{"/profiles/0/parts/accesses/0", kFull}},
            {"/parts/accesses: ", "at most"}},
        Lie{"entry", {{"/profiles/0/parts/counts/0", "3"}}, {"the parts of entry 2 of codebook 0"}},
        Lie{"part_of_less",
            {{"/profiles/0/parts/counts/12", "9"}},
            {"part 0 of codebook 2 has fewer accesses than its hottest entries"}},
        Lie{"common", {{"/profiles/0/parts/common/0", "2"}}, {"2 entries in common where only 1"}},
        Lie{"twice",
            {{"/profiles/0/item", "\"layer1\""}},
            {"/profiles/1: 'layer1.keys' is there twice; remove one"}}),
    [](const auto& test) { return test.param.name; });

// In memory only validate() bounds the numbers.
TEST(AccessCountsValidate, JudgesWhatNoFileCanHold) {
  AccessCounts profile = sample_profile();
  EXPECT_NO_THROW(validate(profile, "here"));
  profile.counts[0] = -1;
  expect_words(message_of([&] { validate(profile, "here"); }), {"here/counts: ", "0 or more"});
  profile = sample_profile();
  profile.units = -2;
  expect_words(message_of([&] { validate(profile, "here"); }), {"here/counts: ", "-2 units"});
  profile = sample_profile();
  profile.parts.common[0] = -1;
  expect_words(message_of([&] { validate(profile, "here"); }), {"here/parts/common: "});
}

}  // namespace
}  // namespace vqgen
