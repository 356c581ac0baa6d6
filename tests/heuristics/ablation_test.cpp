// The placement rules of an ablation, and the contents of its rows and shapes.
#include <gtest/gtest.h>

#include <set>

#include "core/profiles.h"
#include "heuristics/kernels/slice.h"
#include "heuristics/papers/ablation/rows.h"
#include "heuristics/placement/plan_use.h"
#include "heuristics/space.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

Gemv gemv(const std::string& format) {
  Gemv op;
  op.shape = {1, 4096, 4096};
  op.weights = find_format(format, "test");
  return op;
}
AttentionDecode attention(const std::string& format) {
  AttentionDecode op;
  op.shape = {.batch = 1, .query_heads = 32, .kv_heads = 32, .head_dim = 128, .tokens = 4096};
  op.keys = find_format(format, "test");
  op.values = for_values(op.keys);
  return op;
}

Placement weights(const Plan& plan) { return *placement_of(plan, Operand::weights); }

Plan lanes_of(const Linear& op, const GpuSpec& gpu) { return choose_plan(LinearSimt{}, op, gpu); }

class Rules : public ::testing::Test {
 protected:
  Laid laid(Near near, int registers = 0) {
    return lay(shape_, {near, registers}, problem_, gpu_, {});
  }
  GpuSpec gpu_ = find_gpu("h200");
  Problem problem_ = gemv("aqlm-2x8");
  Plan shape_ = lanes_of(std::get<Gemv>(problem_), gpu_);
};

TEST_F(Rules, PutEntriesWhereTheySay) {
  EXPECT_EQ(weights(laid(Near::none).plan), all_global());
  EXPECT_EQ(weights(laid(Near::all).plan), all_shared(256));
  EXPECT_EQ(weights(laid(Near::half).plan), all_shared(128));
  EXPECT_EQ(weights(laid(Near::lane_copies).plan), all_replicated(256, 8));
  EXPECT_EQ(weights(laid(Near::half_copies).plan), all_replicated(256, 4));
  EXPECT_EQ(weights(laid(Near::all, 1).plan), (Placement{.registers = 1, .shared = 256}));
  for (const Near near : {Near::keys, Near::values, Near::value_copies}) {
    EXPECT_FALSE(laid(near).verdict.ok);
    expect_words(laid(near).verdict.reason, {"one operand"});
  }
  expect_words(laid(Near::slack).verdict.reason, {"holds whole codebooks"});
}

TEST_F(Rules, OfAnAttentionTakeOneOperandEach) {
  problem_ = attention("cq-4c8b");
  shape_ = choose_plan(AttentionSimt{}, std::get<AttentionDecode>(problem_), gpu_);
  const auto keys = std::get<AttentionSimt>(laid(Near::keys).plan);
  EXPECT_EQ(keys.key_codebook, all_shared(256));
  EXPECT_EQ(keys.value_codebook, all_global());
  const auto values = std::get<AttentionSimt>(laid(Near::values).plan);
  EXPECT_EQ(values.key_codebook, all_global());
  EXPECT_EQ(values.value_codebook, all_shared(256));
  const auto copies = std::get<AttentionSimt>(laid(Near::value_copies).plan);
  EXPECT_EQ(copies.key_codebook, all_global());
  EXPECT_EQ(copies.value_codebook, all_replicated(256, 16));
}

TEST_F(Rules, FillABlockToTheLastEntry) {
  for (const char* name : {"h200", "t4", "a100", "l40s"}) {
    gpu_ = find_gpu(name);
    for (const char* format : {"aqlm-3", "aqlm-1x16", "aqlm-2x8"}) {
      problem_ = gemv(format);
      shape_ = lanes_of(std::get<Gemv>(problem_), gpu_);
      const Laid most = laid(Near::most);
      ASSERT_TRUE(most.verdict.ok) << most.verdict.reason;
      const int shared = weights(most.plan).shared;
      const int entries = std::get<Gemv>(problem_).weights.entries();
      EXPECT_GT(shared, 0);
      Plan more = most.plan;
      *placement_of(more, Operand::weights) = all_shared(shared + 1);
      EXPECT_TRUE(shared == entries || !check(more, problem_, gpu_).ok) << shared;
      EXPECT_EQ(laid(Near::all).verdict.ok, shared == entries) << name << format;
    }
  }
}

TEST_F(Rules, DoNotMindTheShapesOwnBoundaries) {
  Plan other = shape_;
  *placement_of(other, Operand::weights) = {.registers = 2, .replicated = 9, .copies = 4};
  for (const Near near : {Near::none, Near::all, Near::slack, Near::most, Near::weighed}) {
    EXPECT_EQ(laid(near).plan, lay(other, {near}, problem_, gpu_, {}).plan)
        << static_cast<int>(near);
  }
}

TEST(AblationShapes, AreBareDistinctAndOfEveryDataflow) {
  const GpuSpec gpu = find_gpu("h200");
  for (const Problem& problem : {Problem(gemv("aqlm-2x8")), Problem(attention("cq-2c8b"))}) {
    std::set<std::string> texts;
    std::set<std::string> dataflows;
    const AblationSpace space(problem, gpu, {});
    for (const Plan& shape : space.shapes()) {
      EXPECT_TRUE(texts.insert(to_json(shape).dump()).second);
      EXPECT_EQ(without_cache(shape, problem), shape);
      dataflows.insert(to_json(shape)["dataflow"].get<std::string>());
    }
    EXPECT_EQ(dataflows.size(), problem.index() == 0 ? 4u : 3u);
  }
}

TEST(AblationShapes, AreAsFarAsTheirFieldsAre) {
  const LinearSimt a{.threads = 127};
  LinearSimt b = a;
  EXPECT_EQ(distance(Plan{a}, Plan{b}), 0);
  b.threads = 255;
  EXPECT_DOUBLE_EQ(distance(Plan{a}, Plan{b}), 1);
  b.codebook = all_shared(3);
  EXPECT_DOUBLE_EQ(distance(Plan{a}, Plan{b}), 2);
  EXPECT_DOUBLE_EQ(distance(Plan{b}, Plan{a}), 2);
}

const AblationRow& row(const AblationSpace& space, const std::string& name) {
  for (const AblationRow& each : space.rows()) {
    if (each.name == name) return each;
  }
  throw std::runtime_error("no row " + name);
}

// Sliced codebooks hold entries whatever the plan's placement says.
TEST(AblationRows, SlicesAreOfNoRowThatNamesAPlacement) {
  Gemv op = gemv("aqlm-1x16");
  const GpuSpec gpu = find_gpu("h200");
  const AblationSpace space(op, gpu, {});
  const Plan plan = choose_plan(LinearSlicedCodebook{}, op, gpu);
  ASSERT_TRUE(check(plan, op, gpu).ok) << check(plan, op, gpu).reason;
  for (const char* name : {"GC*", "SC*", "+ copies", "GC"}) {
    EXPECT_FALSE(space.variant_of(row(space, name), plan)) << name;
  }
  for (const char* name : {"best", "+ dataflow"}) {
    EXPECT_TRUE(space.variant_of(row(space, name), plan)) << name;
  }
}

TEST(AblationRows, SayWhatDoesNotFit) {
  const AblationSpace wide(gemv("aqlm-1x16"), find_gpu("h200"), {});
  expect_words(row(wide, "SC").note, {"as many entries as fit", "shared memory per block"});
  expect_words(row(wide, "SC*").note, {"as many entries as fit"});
  EXPECT_EQ(row(wide, "SC").rules, (std::vector<PlacementRule>{{Near::most}}));
  expect_words(row(wide, "+ copies").refused, {"bytes of shared memory per block"});
  const AblationSpace cache(attention("cq-2c8b"), find_gpu("h200"), {});
  expect_words(row(cache, "+ fusion").refused, {"no fusion"});
  EXPECT_TRUE(row(cache, "SC").note.empty());
  const AblationSpace lattice(gemv("quip-4"), find_gpu("t4"), {});
  for (const AblationRow& each : lattice.rows()) {
    EXPECT_NE(each.refused.empty(), each.rules.empty()) << each.name;
  }
}

TEST(AblationRows, OfferAsManyPlansAsAreAskedForAndEachDataflow) {
  const Problem problem = gemv("aqlm-2x8");
  const AblationSpace space(problem, find_gpu("h200"), {});
  std::set<std::string> taken;
  std::set<std::string> dataflows;
  space.spread(row(space, "GC*"), 9, [&](const Plan& plan) {
    EXPECT_EQ(weights(plan), all_global());
    dataflows.insert(to_json(plan)["dataflow"].get<std::string>());
    return taken.insert(to_json(plan).dump()).second;
  });
  EXPECT_EQ(taken.size(), 9u);
  EXPECT_EQ(dataflows.size(), 3u);
  // Unwanted plans are not counted, and a row without further plans ends.
  int offered = 0;
  space.spread(row(space, "GC"), 5, [&](const Plan&) { return ++offered > 1000000; });
  EXPECT_GT(offered, 0);
  EXPECT_LT(offered, 1000);
}

TEST(AblationRows, NameAPlanInShort) {
  const LinearMma plan{.threads = 128, .codebook = {.replicated = 256, .copies = 8}};
  EXPECT_EQ(in_short(Plan{plan}, gemv("aqlm-2x8")),
            "mma, threads 128, fusion permute; codebook c8");
}

}  // namespace
}  // namespace vqgen
