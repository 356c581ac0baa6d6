// cheapest_plan() is the argmin over the whole space, bit for bit, for every problem, GPU, profile
// and coefficients; and its bounds are bounds, and tight.
#include "heuristics/choose.h"

#include <fmt/format.h>

#include <limits>
#include <map>

#include "core/profiles.h"
#include "heuristics/space.h"
#include "tests/core/support.h"
#include "tests/heuristics/access_counts_random.h"

namespace vqgen {
namespace {

Problem product(const std::string& format, LinearShape shape) {
  Linear op;
  op.shape = shape;
  op.weights = find_format(format, "test");
  return shape.rows <= Gemv::kMostRows ? Problem(Gemv{op}) : Problem(Gemm{op});
}

std::vector<Problem> products() {
  std::vector<Problem> all;
  for (const char* format : {"aqlm-2x8", "quip-4", "gptvq-2", "aqlm-3"}) {
    all.push_back(product(format, {1, 4096, 4096}));
    all.push_back(product(format, {4, 14336, 4096}));
    all.push_back(product(format, {8, 28672, 8192}));
    all.push_back(product(format, {64, 4096, 4096}));
    all.push_back(product(format, {256, 1000, 520}));
  }
  all.push_back(product("aqlm-1x16", {1, 8, 8}));
  all.push_back(product("aqlm-3", {3, 100, 520}));
  all.push_back(product("quip-2", {2, 24, 4096}));
  return all;
}

// The definition of cheapest_plan(), by a plain search.
std::optional<Plan> first_of_the_cheapest(const Problem& problem, const GpuSpec& gpu,
                                          std::span<const AccessCounts> profiles, bool last_block,
                                          const CostProfile& coefficients) {
  CostModel model(problem, gpu, profiles, coefficients);
  std::optional<Plan> best;
  double least = std::numeric_limits<double>::infinity();
  const SpaceOptions all{.most = 0, .last_block = last_block};
  for (const Plan& plan : space(problem, gpu, all).plans) {
    if (std::holds_alternative<AttentionInt8Mma>(plan)) continue;
    const std::optional<Cost> cost = model(plan);
    if (!cost || cost->us >= least) continue;
    best = plan;
    least = cost->us;
  }
  return best;
}

// Coefficients with other optima than the shipped ones: one part of each dataflow dominates, and
// overlapping parts are summed or normed.
CostProfile lopsided(std::size_t heavy, double overlap) {
  CostProfile profile{"h200", {}};
  for (const char* name : {"linear_simt", "linear_mma", "linear_lut"}) {
    CostCoefficients& each = profile.dataflows[name];
    each.overlap = overlap;
    each.of.of.fill(0.5);
    each.of.of[heavy] = 50;
  }
  return profile;
}

TEST(CheapestPlan, IsTheFirstOfTheCheapestOfTheSpace) {
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = find_gpu(name);
    for (const Problem& problem : products()) {
      SCOPED_TRACE(name + " " + to_json(problem).dump());
      for (const bool last_block : {false, true}) {
        const auto plan = cheapest_plan(problem, gpu, {}, last_block);
        EXPECT_TRUE(plan.has_value());
        EXPECT_EQ(plan, first_of_the_cheapest(problem, gpu, {}, last_block, cost_profile()));
      }
    }
  }
}

TEST(CheapestPlan, IsSoByAllCoefficients) {
  const GpuSpec gpu = find_gpu("h200");
  for (std::size_t heavy = 0; heavy < kCostParts; ++heavy) {
    for (const double overlap : {1.0, 3.0}) {
      const CostProfile profile = lopsided(heavy, overlap);
      for (const char* format : {"aqlm-2x8", "gptvq-2"}) {
        const Problem problem = product(format, {4, 1024, 2048});
        SCOPED_TRACE(fmt::format("{} {} {}", format, enum_names<CostPart>[heavy], overlap));
        EXPECT_EQ(cheapest_plan(problem, gpu, {}, true, profile),
                  first_of_the_cheapest(problem, gpu, {}, true, profile));
      }
    }
  }
}

TEST(CheapestPlan, IsSoWithAccessCountsAndWithoutSomeDataflows) {
  const GpuSpec gpu = find_gpu("h200");
  const Problem problem = product("aqlm-2x8", {1, 4096, 4096});
  AccessCounts one;
  one.operand = Operand::weights;
  one.entries = 256;
  one.units = 1;
  one.num_codebooks = 2;
  one.counts.assign(512, 1);
  one.counts[0] = one.counts[256] = 1000;
  const std::vector<AccessCounts> hot{one};
  EXPECT_EQ(cheapest_plan(problem, gpu, hot, true),
            first_of_the_cheapest(problem, gpu, hot, true, cost_profile()));
  CostProfile profile = cost_profile();
  for (const char* name : {"linear_mma", "linear_lut", "linear_simt"}) {
    profile.dataflows.erase(name);
    EXPECT_EQ(cheapest_plan(problem, gpu, {}, true, profile),
              first_of_the_cheapest(problem, gpu, {}, true, profile));
  }
  EXPECT_FALSE(cheapest_plan(problem, gpu, {}, true, profile).has_value());
}

TEST(CheapestPlan, GoesByBoundsThatHoldAndAreNear) {
  for (const std::string name : {"h200", "t4"}) {
    const GpuSpec gpu = find_gpu(name);
    for (const Problem& problem : products()) {
      CostModel model(problem, gpu, {});
      for (const Plan& plan : space(problem, gpu, {.most = 300}).plans) {
        SCOPED_TRACE(name + " " + to_json(problem).dump() + to_json(plan).dump());
        const double us = model(plan)->us;
        if (placement_of(plan, Operand::weights) == nullptr)
          continue;  // sliced_codebook, which has none
        EXPECT_LE(model.least_us(plan), us);
      }
    }
  }
}

// Takes ranked plans in order, each if it is unlike those taken before, with the fields that the
// config fixes.
TEST(LikelyPlans, AreTheCheapestThatDiffer) {
  const GpuSpec gpu = find_gpu("h200");
  Config config;
  config.problem = product("aqlm-2x8", {8, 14336, 4096});
  config.source = "test";
  config.plan = Json::object();
  const std::vector<RankedPlan> ranked = rank(config.problem, gpu, {});
  const std::vector<Plan> likely = likely_plans(config, gpu, {}, 12);
  ASSERT_EQ(likely.size(), 12u);
  EXPECT_EQ(likely.front(), ranked.front().plan);
  std::size_t next = 0;
  for (const RankedPlan& each : ranked) {
    bool like = false;
    for (std::size_t i = 0; i < next; ++i) {
      like =
          like || (likely[i].index() == each.plan.index() && doublings(likely[i], each.plan) < 0.9);
    }
    if (like) continue;
    EXPECT_EQ(each.plan, likely[next]);
    if (++next == likely.size()) break;
  }
  config.plan = {{"dataflow", "mma"}, {"threads", 256}};
  const std::vector<Plan> fixed = likely_plans(config, gpu, {}, 5);
  EXPECT_EQ(fixed.size(), 5u);
  for (const Plan& plan : fixed) EXPECT_TRUE(has_fixed_fields(plan, config));
}

}  // namespace
}  // namespace vqgen
