// Other formats of as many bits: which presets correspond, and when they are said to be faster.
#include "heuristics/formats.h"

#include <tuple>

#include "core/profiles.h"
#include "tests/core/support.h"
#include "tests/klt_runs.h"

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
  for (const OtherFormats& each : faster_entries(problem, gpu, own.value().us)) {
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
TEST(OtherEntries, AreNotNamedBesideIntegers) {
  EXPECT_TRUE(names(faster(attention("vecinfer-d4b8", "vecinfer-d4b8", 1)),
                    "keys vecinfer-d4b8i8, values vecinfer-d4b8i8"));
  for (const int query_tokens : {1, 4}) {
    EXPECT_TRUE(faster(attention("vecinfer-d4b8i8", "vecinfer-d4b8i8", query_tokens)).empty());
  }
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

std::string faster_preset(const Problem& problem, double slower = 1) {
  const GpuSpec gpu = find_gpu("h200");
  const std::optional<Cost> own = CostModel(problem, gpu, {})(propose(problem, gpu));
  const auto best = faster_presets(problem, gpu, slower * own.value().us);
  if (!best) return "";
  EXPECT_LE(best->us * kWorthTraining, own->us);
  return best->formats;
}

Gemv product(const std::string& weights, int m) {
  Gemv op;
  op.shape = {m, 28672, 8192};
  op.weights = find_format(weights, "test");
  return op;
}

// docs/formats.md has measurements of most of them.
TEST(OtherPresets, AreNamedWhereTheyAreFaster) {
  for (const int query_tokens : {1, 4}) {
    EXPECT_EQ(faster_preset(attention("cq-4c8b", "cq-4c8b", query_tokens)),
              "keys vecinfer-d4b8i8, values vecinfer-d4b8i8");
  }
  for (const int m : {1, 8}) {
    EXPECT_EQ(faster_preset(product("aqlm-1x16i8", m)), "weights aqlm-2x8i8") << m;
    EXPECT_EQ(faster_preset(product("quip-2", m)), "weights aqlm-2x8i8") << m;
  }
}

TEST(OtherPresets, AreNotNamedWhereNoneIsFaster) {
  EXPECT_EQ(faster_preset(attention("vecinfer-d4b8i8", "vecinfer-d4b8i8", 1)), "");
  EXPECT_EQ(faster_preset(attention("vecinfer-d4b8i8", "vecinfer-d4b8", 4)), "");
  for (const int query_tokens : {1, 4}) {
    EXPECT_EQ(faster_preset(attention("klt-2bit-keys", "klt-2bit-values", query_tokens)), "");
  }
  EXPECT_EQ(faster_preset(attention("vecinfer-d2b8", "vecinfer-d2b8", 1)), "");
  EXPECT_EQ(faster_preset(product("aqlm-2x8i8", 8)), "");
  // Other entries, or the chosen plan, are as fast.
  EXPECT_EQ(faster_preset(attention("vecinfer-d4b8", "vecinfer-d4b8", 1)), "");
  EXPECT_EQ(faster_preset(product("aqlm-2x8", 8)), "");
  EXPECT_EQ(faster_preset(product("aqlm-2x8i8", 8), 10), "");
}

TEST(OtherPresets, FitTheProblem) {
  AttentionDecode op = attention("cq-4c8b", "cq-4c8b", 1);
  const GpuSpec gpu = find_gpu("h200");
  const auto best = faster_presets(op, gpu, 1e6);
  ASSERT_TRUE(best.has_value());
  const auto& other = std::get<AttentionDecode>(best->problem);
  EXPECT_EQ(other.keys, find_format("vecinfer-d4b8i8", "test"));
  EXPECT_FALSE(other.values.hadamard);
  EXPECT_TRUE(check(choose(other, gpu), other, gpu).ok);
  Gemv grouped = product("quip-2", 8);
  grouped.weights.layout = {4, 1};
  const auto weights = faster_presets(grouped, gpu, 1e6);
  ASSERT_TRUE(weights.has_value());
  EXPECT_EQ(std::get<Gemv>(weights->problem).weights.layout, grouped.weights.layout);
  KvAppend append;
  append.shape = {.batch = 1, .kv_heads = 8, .head_dim = 128, .tokens = 64, .new_tokens = 1};
  append.keys = append.values = find_format("cq-4c8b", "test");
  EXPECT_FALSE(faster_presets(append, gpu, 1e6).has_value());
}

// A balanced schedule of formats in parts costs 1.08 of the time of blocks that rotate their own
// rows at 16,384 tokens (bench/measurements/experiments.csv, ai-153), and less at more.
TEST(Propose, BalancesPartsWhereItCostsLittle) {
  AttentionDecode op = attention("klt-2bit-keys", "klt-2bit-values", 1);
  op.keys = op.values = test::klt_of_three_runs();
  op.shape.batch = 16;
  op.shape.query_heads = 32;
  op.shape.kv_heads = 8;
  for (const auto& [tokens, raw, page_tokens, balanced] :
       {std::tuple(16384, 0, 0, false), std::tuple(32768, 0, 0, true),
        std::tuple(16384, 128, 0, false), std::tuple(16384, 0, 16, false),
        std::tuple(32768, 128, 0, true), std::tuple(32768, 0, 16, true),
        std::tuple(8192, 0, 0, false)}) {
    op.shape.tokens = tokens;
    op.shape.recent_tokens = raw;
    op.shape.page_tokens = page_tokens;
    EXPECT_EQ(is_by_length(propose(op, find_gpu("h200"))), balanced)
        << tokens << " tokens, " << raw << " of them raw, pages of " << page_tokens;
  }
}

// Attention by int8_mma and mma side by side on an H200:
// bench/measurements/int8_mma-beside-mma.csv.
TEST(Propose, TakesBytesWhereTheyWereFaster) {
  struct Case {
    int batch;
    std::int64_t tokens;
    int query_heads, kv_heads;
    bool bytes;
    bool balanced = false;
  };
  for (const Case& each :
       {Case{16, 16384, 32, 8, true}, Case{64, 8192, 32, 8, true}, Case{1, 32768, 28, 4, true},
        Case{32, 4096, 32, 8, true}, Case{20, 8192, 32, 8, true, true},
        Case{20, 32768, 32, 8, true, true}, Case{24, 8192, 32, 8, true, true},
        Case{24, 20000, 32, 8, true, true}, Case{27, 8192, 40, 5, false}}) {
    AttentionDecode op = attention("vecinfer-d4b8i8", "vecinfer-d4b8i8", 1);
    op.shape.batch = each.batch;
    op.shape.tokens = each.tokens;
    op.shape.query_heads = each.query_heads;
    op.shape.kv_heads = each.kv_heads;
    const Plan plan = propose(op, find_gpu("h200"));
    EXPECT_EQ(std::holds_alternative<AttentionInt8Mma>(plan), each.bytes)
        << each.batch << " x " << each.tokens << " " << to_json(plan).dump();
    EXPECT_EQ(is_by_length(plan), each.balanced) << each.batch << " x " << each.tokens;
    op.shape.batch_invariant = true;
    EXPECT_FALSE(is_by_length(propose(op, find_gpu("h200"))));
  }
}

}  // namespace
}  // namespace vqgen
