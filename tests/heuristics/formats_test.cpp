// Other entries with as many bits: which presets correspond, and when they are said to be faster.
#include "heuristics/formats.h"

#include "core/profiles.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

AttentionDecode attention(const std::string& keys, const std::string& values, int query_tokens) {
  AttentionDecode op;
  op.shape = {.batch = 16,
              .query_heads = 32,
              .kv_heads = 8,
              .head_dim = 128,
              .tokens = 16384,
              .query_tokens = query_tokens};
  op.keys = find_format(keys, "test");
  op.values = for_values(find_format(values, "test"));
  return op;
}

std::vector<std::string> faster(const Problem& problem) {
  const GpuSpec gpu = find_gpu("h200");
  const std::optional<Cost> own = CostModel(problem, gpu, {})(propose(problem, gpu));
  std::vector<std::string> formats;
  double before = 0;
  for (const OtherEntries& each : faster_entries(problem, gpu, own.value().us)) {
    EXPECT_LE(each.us * kWorthChanging, own->us);
    EXPECT_GE(each.us, before);
    before = each.us;
    formats.push_back(each.formats);
  }
  return formats;
}

bool names(const std::vector<std::string>& all, const std::string& formats) {
  return std::find(all.begin(), all.end(), formats) != all.end();
}

TEST(OtherEntries, OfAPresetAreThePresetThatDiffersInNothingElse) {
  const std::map<std::string, std::string> pairs{{"vecinfer-d4b8", "vecinfer-d4b8i8"},
                                                 {"vecinfer-d8b12", "vecinfer-d8b12i8"},
                                                 {"aqlm-2x8", "aqlm-2x8i8"}};
  for (const auto& [wide, narrow] : pairs) {
    for (const bool values : {false, true}) {
      const auto of = [&](const std::string& name) {
        const VqFormat format = find_format(name, "test");
        return values ? for_values(format) : format;
      };
      ASSERT_TRUE(other_entries(of(wide), values).has_value()) << wide;
      EXPECT_EQ(other_entries(of(wide), values)->format, of(narrow)) << wide;
      ASSERT_TRUE(other_entries(of(narrow), values).has_value()) << narrow;
      EXPECT_EQ(other_entries(of(narrow), values)->format, of(wide)) << narrow;
    }
  }
  for (const char* alone : {"int8-channel", "quip-2", "int4-kivi-keys"}) {
    EXPECT_FALSE(other_entries(find_format(alone, "test"), false).has_value()) << alone;
  }
}

TEST(OtherEntries, KeepTheLayoutOfTheCodes) {
  VqFormat format = find_format("aqlm-2x8", "test");
  format.layout = {4, 1};
  EXPECT_EQ(other_entries(format, false)->format.layout, format.layout);
}

// docs/guides/quantize.md recommends in the same cases.
TEST(OtherEntries, OfValuesDependOnTheQueryTokens) {
  EXPECT_TRUE(names(faster(attention("vecinfer-d4b8", "vecinfer-d4b8", 1)),
                    "keys vecinfer-d4b8i8, values vecinfer-d4b8i8"));
  EXPECT_TRUE(faster(attention("vecinfer-d4b8i8", "vecinfer-d4b8i8", 1)).empty());
  EXPECT_TRUE(
      names(faster(attention("vecinfer-d4b8i8", "vecinfer-d4b8i8", 4)), "values vecinfer-d4b8"));
  EXPECT_TRUE(faster(attention("vecinfer-d4b8i8", "vecinfer-d4b8", 4)).empty());
}

TEST(OtherEntries, AreOfWeightsTooAndOfNoOtherOp) {
  Gemv op;
  op.shape = {8, 28672, 8192};
  op.weights = find_format("aqlm-2x8", "test");
  EXPECT_EQ(faster(op), std::vector<std::string>{"weights aqlm-2x8i8"});
  KvAppend append;
  append.shape = {.batch = 1, .kv_heads = 8, .head_dim = 128, .tokens = 64, .new_tokens = 1};
  append.keys = find_format("vecinfer-d4b8", "test");
  append.values = for_values(append.keys);
  EXPECT_TRUE(faster_entries(append, find_gpu("h200"), 1e6).empty());
}

// Attention by int8_mma and mma side by side on an H200:
// bench/measurements/bytes-beside-fragments.csv.
TEST(Propose, TakesBytesWhereTheyWereFaster) {
  struct Case {
    int batch;
    std::int64_t tokens;
    int query_heads, kv_heads;
    bool bytes;
  };
  for (const Case& each :
       {Case{16, 16384, 32, 8, true}, Case{64, 8192, 32, 8, true}, Case{1, 32768, 28, 4, true},
        Case{32, 4096, 32, 8, true}, Case{17, 8192, 32, 8, false}, Case{18, 16384, 32, 8, false},
        Case{24, 8192, 32, 8, false}, Case{24, 20000, 32, 8, false},
        Case{27, 8192, 40, 5, false}}) {
    AttentionDecode op = attention("vecinfer-d4b8i8", "vecinfer-d4b8i8", 1);
    op.shape.batch = each.batch;
    op.shape.tokens = each.tokens;
    op.shape.query_heads = each.query_heads;
    op.shape.kv_heads = each.kv_heads;
    const Plan plan = propose(op, find_gpu("h200"));
    EXPECT_EQ(std::holds_alternative<AttentionInt8Mma>(plan), each.bytes)
        << each.batch << " x " << each.tokens << " " << to_json(plan).dump();
  }
}

}  // namespace
}  // namespace vqgen
