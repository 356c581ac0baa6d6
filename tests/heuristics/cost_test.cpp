// The cost model: finite, positive, monotone if it must be, independent of the order of plans, and
// read from a strictly checked profile.
#include "heuristics/cost.h"

#include <cmath>
#include <random>

#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/explain.h"
#include "heuristics/space.h"
#include "tests/core/support.h"
#include "tests/heuristics/access_counts_random.h"

namespace vqgen {
namespace {

Json sound_profile() {
  Json parts = {{"overlap", 2}};
  for (const char* part : enum_names<CostPart>) parts[part] = 1;
  return {{"gpu", "h200"}, {"source", "test"}, {"dataflows", {{"linear_simt", parts}}}};
}

Problem example(const std::string& name) {
  return read_config(std::filesystem::path(VQGEN_SOURCE_DIR "/examples/configs") / (name + ".json"))
      .problem;
}

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const auto& path : example_configs()) {
    const Problem problem = read_config(path).problem;
    if (as_linear(problem) || std::get_if<AttentionDecode>(&problem)) all.push_back(problem);
  }
  Gemm op;
  op.shape = {64, 4096, 11008};
  op.weights = find_format("gptvq-2", "test");
  all.emplace_back(op);
  // Values in parts, of more sub-vectors than a small block has threads.
  AttentionDecode parts;
  parts.shape = {.batch = 2, .query_heads = 8, .kv_heads = 2, .head_dim = 256, .tokens = 900};
  parts.keys = find_format("vecinfer-d4b8", "test");
  VqFormat half{.vector_size = 2, .index_bits = 4, .scope = Scope::tensor};
  for (int c = 0; c < 128; ++c) half.channels.push_back(c);
  parts.values.parts.push_back(half);
  for (int& c : half.channels) c += 128;
  parts.values.parts.push_back(half);
  parts.values.take_alone();
  validate(parts, "test");
  all.emplace_back(parts);
  return all;
}

// Every part of every dataflow at its ceiling; another test checks the shipped profile.
const CostProfile& ceilings() {
  static const CostProfile profile = [] {
    CostCoefficients ones;
    ones.overlap = 2;
    ones.of.of.fill(1);
    CostProfile all{"h200", {}};
    for (const char* name :
         {"linear_simt", "linear_mma", "linear_lut", "linear_wgmma", "linear_sliced_codebook",
          "linear_wgmma_large_m", "linear_wgmma_large_m_bytes", "linear_int8_mma",
          "linear_int8_wgmma", "attention_simt", "attention_mma"})
      all.dataflows[name] = ones;
    return all;
  }();
  return profile;
}

// The plans of the space whose work is counted: all but attention's lut and channels.
std::vector<Plan> counted(const Problem& problem, const GpuSpec& gpu,
                          const SpaceOptions& options = {}) {
  CostModel model(problem, gpu, {}, ceilings());
  std::vector<Plan> plans;
  for (const Plan& plan : space(problem, gpu, options).plans) {
    const bool left_out = std::holds_alternative<AttentionLut>(plan) ||
                          std::holds_alternative<AttentionChannels>(plan);
    EXPECT_EQ(model(plan).has_value(), !left_out) << to_json(plan).dump();
    if (!left_out) plans.push_back(plan);
  }
  return plans;
}

double us_of(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  return CostModel(problem, gpu, {}, ceilings())(plan).value().us;
}

TEST(Cost, IsFiniteAndPositiveForEveryPlanAndGpu) {
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = find_gpu(name);
    for (const Problem& problem : problems()) {
      CostModel model(problem, gpu, {}, ceilings());
      for (const Plan& plan : counted(problem, gpu)) {
        const std::optional<Cost> cost = model(plan);
        ASSERT_TRUE(cost.has_value()) << to_json(plan).dump();
        EXPECT_TRUE(std::isfinite(cost->us) && cost->us > 0) << to_json(plan).dump();
        for (const double part : cost->parts.of) EXPECT_TRUE(std::isfinite(part) && part >= 0);
        EXPECT_GE(cost->us, cost->parts[CostPart::launch]);
        EXPECT_GE(cost->us, cost->parts[CostPart::memory]);
      }
    }
  }
}

TEST(Cost, DoesNotDependOnWhatWasAskedBefore) {
  const GpuSpec gpu = find_gpu("h200");
  std::mt19937 random(5);
  for (const Problem& problem : problems()) {
    std::vector<Plan> plans = counted(problem, gpu);
    std::vector<double> alone;
    for (const Plan& plan : plans) alone.push_back(us_of(plan, problem, gpu));
    std::vector<std::size_t> order(plans.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    CostModel model(problem, gpu, {}, ceilings());
    for (const std::size_t i : order) EXPECT_EQ(model(plans[i])->us, alone[i]);
  }
}

// A plan never becomes cheaper with more work.
TEST(Cost, GrowsWithRowsTokensAndSequences) {
  const GpuSpec gpu = find_gpu("h200");
  Gemm op;
  op.weights = find_format("aqlm-2x8", "test");
  op.shape = {2, 4096, 4096};
  for (const Plan& plan : counted(op, gpu)) {
    double before = 0;
    for (const int rows : {2, 4, 8, 16, 64, 256}) {
      Gemm more = op;
      more.shape.rows = rows;
      if (!check(plan, more, gpu).ok) break;
      const double us = us_of(plan, more, gpu);
      EXPECT_GE(us, before) << rows << to_json(plan).dump();
      before = us;
    }
  }
  AttentionDecode cache = std::get<AttentionDecode>(example("llama3-8b-attention-2bit"));
  cache.shape.tokens = 1000;
  for (const Plan& plan : counted(cache, gpu)) {
    double before = 0;
    for (const std::int64_t tokens : {1000, 1001, 2000, 4096, 100000}) {
      AttentionDecode more = cache;
      more.shape.tokens = tokens;
      const double us = us_of(plan, more, gpu);
      EXPECT_GE(us, before) << tokens << to_json(plan).dump();
      before = us;
      more.shape.batch = 7;
      EXPECT_GE(us_of(plan, more, gpu), us);
    }
  }
}

TEST(Cost, NoGpuIsSlowerForBeingBetter) {
  const GpuSpec gpu = find_gpu("h200");
  for (const Problem& problem : problems()) {
    for (const Plan& plan : counted(problem, gpu, {.most = 60})) {
      const double us = us_of(plan, problem, gpu);
      GpuSpec other = gpu;
      other.memory_gbps /= 4;
      EXPECT_GT(us_of(plan, problem, other), us);
      other = gpu;
      other.sm_clock_mhz *= 2;
      EXPECT_LT(us_of(plan, problem, other), us);
      other = gpu;
      other.sms /= 2;
      EXPECT_GE(us_of(plan, problem, other), us);
      other = gpu;
      other.max_threads_per_sm = 1024;  // fewer blocks at a time
      other.registers_per_sm /= 2;
      // These plans leave more of L1 to global lookups, while all else takes longer.
      const CostParts ideal = CostModel(problem, gpu, {}, ceilings()).ideal(plan);
      const CostParts others = CostModel(problem, other, {}, ceilings()).ideal(plan);
      for (std::size_t part = 0; part < kCostParts; ++part) {
        if (part == static_cast<std::size_t>(CostPart::lines)) continue;
        EXPECT_GE(others.of[part], ideal.of[part]) << to_json(plan).dump();
      }
      if (ideal[CostPart::lines] > 0) continue;
      EXPECT_GE(us_of(plan, problem, other), us);
    }
  }
}

// 1 MB of entries are gathered through the part of L1 that shared memory leaves.
TEST(Cost, TheMoreBlocksKeepInSharedMemoryTheLongerLookupsInGlobalMemoryTake) {
  const GpuSpec gpu = find_gpu("h200");
  Gemm op;
  op.shape = {64, 4096, 4096};
  op.weights = find_format("aqlm-1x16", "test");
  double before = 0;
  for (const int columns : {128, 256, 512}) {
    LinearWgmma groups;
    groups.threads = 512;
    groups.outputs_per_warp = 16;
    groups.rows_per_block = 64;
    groups.chunk_columns = columns;
    groups.code_words = 2;
    groups.codebook = all_global();
    const Plan plan = groups;
    ASSERT_TRUE(check(plan, op, gpu).ok);
    const double us = CostModel(op, gpu, {}, ceilings()).ideal(plan)[CostPart::lines];
    EXPECT_GT(us, before) << columns;
    before = us;
  }
}

// Copies of whole codebooks are laid out in memory as in shared memory.
TEST(Cost, CopiesPassWhileTheLastLaunchEndsWhereLaunchesOverlap) {
  const auto fill = [](const char* format, const char* gpu) {
    AttentionDecode op;
    op.keys = op.values = find_format(format, "test");
    op.shape.batch = 1;
    op.shape.query_heads = 4;
    op.shape.kv_heads = 1;
    op.shape.head_dim = 128;
    op.shape.tokens = 1000;
    const int entries = 1 << op.keys.index_bits;
    AttentionMma fragments;
    fragments.threads = 128;
    fragments.splits = 4;
    fragments.heads_per_block = 4;
    fragments.key_codebook = fragments.value_codebook = all_shared(entries);
    const Plan plan = fragments;
    GpuSpec other = find_gpu("h200");
    other.arch = gpu;
    return CostModel(op, other, {}, ceilings()).ideal(plan)[CostPart::fill];
  };
  EXPECT_NEAR(fill("vecinfer-d4b8", "sm_90"), 0.15 * fill("vecinfer-d4b8", "sm_80"), 1e-9);
  EXPECT_EQ(fill("vecinfer-d4b10i8", "sm_90"), fill("vecinfer-d4b10i8", "sm_80"));
}

// In a hot profile lanes agree, so there are fewer conflicts than with uniform codes.
TEST(Cost, KnowsAccessCounts) {
  Gemv op;
  op.shape = {1, 4096, 4096};
  op.weights = find_format("aqlm-2x8", "test");
  const GpuSpec gpu = find_gpu("h200");
  const Plan plan =
      LinearMma{.outputs_per_warp = 16, .chunk_columns = 1024, .codebook = all_shared(256)};
  ASSERT_TRUE(check(plan, op, gpu).ok);
  AccessCounts one;
  one.operand = Operand::weights;
  one.entries = 256;
  one.units = 1;
  one.num_codebooks = 2;
  one.counts.assign(512, 0);
  one.counts[0] = one.counts[256] = 1000;
  const std::vector<AccessCounts> hot{one};
  const double spread = CostModel(op, gpu, {}).ideal(plan)[CostPart::shared];
  EXPECT_LT(CostModel(op, gpu, hot).ideal(plan)[CostPart::shared], 0.7 * spread);
}

TEST(CostProfile, IsReadStrictly) {
  EXPECT_EQ(read_cost_profile(sound_profile(), "c.json").dataflows.size(), 1u);
  const auto message = [](const Json& json) {
    return message_of([&] { read_cost_profile(json, "c.json"); });
  };
  const std::string at = "/dataflows/linear_simt";
  expect_words(message(edited(sound_profile(), {{at + "/shared", ""}})), {"shared", "missing"});
  expect_words(message(edited(sound_profile(), {{at + "/shared", "-1"}})), {at + "/shared"});
  expect_words(message(edited(sound_profile(), {{at + "/shared", "1e9"}})), {at + "/shared"});
  expect_words(message(edited(sound_profile(), {{at + "/shared", "\"x\""}})), {at + "/shared"});
  expect_words(message(edited(sound_profile(), {{at + "/overlap", "0.5"}})), {at + "/overlap"});
  expect_words(message(edited(sound_profile(), {{at + "/typo", "1"}})), {"typo"});
  expect_words(message(edited(sound_profile(), {{"/dataflows", "[]"}})), {"/dataflows"});
  expect_words(message(edited(sound_profile(), {{"/dense_gemm", "{}"}})),
               {"operations", "missing"});
  expect_words(message(edited(sound_profile(), {{"/gpu", ""}})), {"gpu", "missing"});
}

TEST(CostProfile, OfNoDataflowMakesTheModelSilentAndTheRulesChoose) {
  const Problem problem = example("llama3-8b-up-aqlm-2x8");
  const GpuSpec gpu = find_gpu("h200");
  Json json = sound_profile();
  json["dataflows"] = Json::object();
  const CostProfile none = read_cost_profile(json, "c.json");
  CostModel model(problem, gpu, {}, none);
  EXPECT_FALSE(model(choose(problem, gpu)).has_value());
}

TEST(CostProfile, TheShippedOneKnowsEveryDataflowOfProducts) {
  for (const char* name : {"linear_simt", "linear_mma", "linear_lut"}) {
    EXPECT_TRUE(cost_profile().dataflows.contains(name)) << name;
  }
  EXPECT_NO_THROW(find_gpu(cost_profile().gpu));
}

TEST(Rank, IsCheapestFirstAndChooseTakesTheFirst) {
  const GpuSpec gpu = find_gpu("h200");
  for (const Problem& problem : problems()) {
    const std::vector<RankedPlan> ranked = rank(problem, gpu, {});
    if (ranked.empty()) {  // not modelled: the rules choose
      EXPECT_EQ(choose(problem, gpu, {.chooser = Chooser::model}),
                choose(problem, gpu, {.chooser = Chooser::rules}));
      continue;
    }
    for (std::size_t i = 1; i < ranked.size(); ++i) {
      EXPECT_LE(ranked[i - 1].cost.us, ranked[i].cost.us);
    }
    EXPECT_EQ(choose(problem, gpu, {.chooser = Chooser::model}), ranked.front().plan);
  }
}

// Only the rules pair keys shared once with copies of values: the space pairs equal placements.
TEST(Propose, TakesTheRulesPlanWhereItIsExpectedToBeFaster) {
  AttentionDecode op;
  op.shape = {53, 16, 8, 128, 2344};
  op.keys = find_format("vecinfer-d8b12", "test");
  op.values = find_format("vecinfer-d4b8i8", "test");
  const GpuSpec gpu = find_gpu("h100");
  const auto space_best = cheapest_plan(op, gpu, {}, kDefaultLastBlock);
  ASSERT_TRUE(space_best.has_value());
  const Plan rules = choose(op, gpu, {.chooser = Chooser::rules});
  CostModel model(op, gpu, {});
  ASSERT_LT(model(rules)->us, model(*space_best)->us);
  EXPECT_EQ(choose(op, gpu, {.chooser = Chooser::model}), rules);
}

TEST(Propose, ChoosesAroundWhatTheConfigFixes) {
  const GpuSpec gpu = find_gpu("h200");
  Config config;
  config.problem = example("llama3-8b-up-aqlm-2x8");
  config.source = "c.json";
  for (const char* dataflow : {"simt", "mma", "lut"}) {
    for (const Chooser chooser : {Chooser::model}) {
      config.plan = {{"dataflow", dataflow}};
      const Plan plan = propose(config, gpu, {.chooser = chooser});
      const Verdict verdict = check(plan, config.problem, gpu);
      EXPECT_TRUE(verdict.ok) << verdict.reason;
      EXPECT_EQ(dataflow_name(plan), dataflow);
    }
  }
  config.plan = {{"threads", 96}, {"codebook", {{"shared", 100}}}};
  const Plan plan = propose(config, gpu, {.chooser = Chooser::model});
  EXPECT_EQ(to_json(plan)["threads"], 96);
  EXPECT_EQ(placement_of(plan, Operand::weights)->shared, 100);
  config.plan = {{"threadz", 96}};
  expect_words(message_of([&] { propose(config, gpu); }), {"threadz"});
}

TEST(Explain, OtherPlansAreOfOtherKindsAndDearer) {
  const GpuSpec gpu = find_gpu("h200");
  for (const Problem& problem : problems()) {
    const Plan plan = choose(problem, gpu, {.chooser = Chooser::model});
    const std::optional<Cost> cost = CostModel(problem, gpu, {})(plan);
    if (!cost) continue;
    const double us = cost->us;
    const auto lines = other_plan_lines(plan, problem, gpu, {});
    ASSERT_FALSE(lines.empty());
    EXPECT_LE(lines.size(), 5u);
    double before = us;
    for (const std::string& line : lines) {
      const double other = std::strtod(line.c_str(), nullptr);
      EXPECT_GE(other, before - 0.06) << line;
      before = other;
    }
  }
}

TEST(Explain, SaysWhereTheModelWasNotMeasured) {
  const Problem problem = example("llama3-8b-up-aqlm-2x8");
  const auto text = [&](const std::string& name) {
    std::string all;
    for (const auto& line : cost_lines(choose(problem, find_gpu(name), {.chooser = Chooser::model}),
                                       problem, find_gpu(name), {})) {
      all += line + "\n";
    }
    return all;
  };
  EXPECT_EQ(text("h100").find("scaled to"), std::string::npos);
  expect_words(text("a100"), {"cost model: h100.json, scaled to NVIDIA A100"});
}

}  // namespace
}  // namespace vqgen
