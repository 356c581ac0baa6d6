// ablate() with times from a formula: what rows measure and report, on any device.
#include "runtime/ablate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/placement/plan_use.h"
#include "heuristics/space.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

Problem product(const std::string& format, LinearShape shape) {
  Gemm gemm;
  gemm.shape = shape;
  gemm.weights = find_format(format, "test");
  if (shape.rows > 1) return gemm;
  Gemv gemv;
  static_cast<Linear&>(gemv) = gemm;
  return gemv;
}
Problem attention(const std::string& format, std::int64_t tokens) {
  AttentionDecode op;
  op.shape = {.batch = 2, .query_heads = 8, .kv_heads = 4, .head_dim = 128, .tokens = tokens};
  op.keys = find_format(format, "test");
  op.values = for_values(op.keys);
  return op;
}

std::vector<Problem> problems() {
  return {product("aqlm-2x8", {1, 1000, 1032}),
          product("gptvq-2", {9, 512, 512}),
          product("quip-4", {3, 100, 520}),
          product("aqlm-1x16", {1, 256, 512}),
          attention("cq-4c8b", 977),
          attention("vecinfer-d8b12", 64)};
}

std::vector<Placement> placements(Plan plan, const Problem& problem) {
  std::vector<Placement> all;
  for (const OperandUse& use : plan_use(plan, problem).operands) {
    const Placement* placement = placement_of(plan, use.operand);
    all.push_back(placement == nullptr ? all_global() : *placement);
  }
  return all;
}

std::string_view dataflow(const Plan& plan) { return dataflow_name(plan); }

// The time is least for one shape, plus an offset for each level.
double formula(const Plan& plan, const Problem& problem) {
  static const std::map<std::string_view, double> kDataflows{
      {"simt", 4.0},         {"mma", 1.0},   {"lut", 2.0},
      {"channels", 3.0},     {"wgmma", 3.0}, {"sliced_codebook", 3.0},
      {"wgmma_large_m", 3.5}};
  Plan target = without_cache(plan, problem);
  std::visit(
      [](auto& each) {
        each.threads = 256;
        if constexpr (requires { each.splits; }) each.splits = 3;
      },
      target);
  double time = 10 + kDataflows.at(dataflow(plan)) + distance(without_cache(plan, problem), target);
  for (const Placement& each : placements(plan, problem)) {
    time += each.replicated > 0 ? 0.5 : each.shared > 0 ? 1.5 : 2.5;
    time += each.registers;
  }
  return time;
}

class Fake {
 public:
  explicit Fake(Problem problem) : problem_(std::move(problem)) {}

  Ablation run(std::size_t budget, const GpuSpec& gpu = find_gpu("h200")) {
    space_.emplace(problem_, gpu, std::vector<AccessCounts>{});
    return ablate(*space_, budget, [&](const std::vector<Plan>& plans) {
      std::vector<Measurement> results;
      for (const Plan& plan : plans) {
        EXPECT_TRUE(check(plan, problem_, gpu).ok) << to_json(plan).dump();
        results.emplace_back().plan = plan;
        results.back().time_us = formula(plan, problem_);
        if (spoil) spoil(results.back());
      }
      return results;
    });
  }
  const AblationSpace& space() const { return *space_; }
  std::size_t row(const std::string& name) const {
    for (std::size_t i = 0; i < space_->rows().size(); ++i) {
      if (space_->rows()[i].name == name) return i;
    }
    throw std::runtime_error("no row " + name);
  }

  std::function<void(Measurement&)> spoil;

 private:
  Problem problem_;
  std::optional<AblationSpace> space_;
};

// The rows' restrictions, written independently.
bool obeys(const std::string& row, const Plan& plan, const Problem& problem) {
  const auto all = placements(plan, problem);
  const auto each = [&](auto holds) { return std::all_of(all.begin(), all.end(), holds); };
  const auto some = [&](auto holds) { return std::any_of(all.begin(), all.end(), holds); };
  const auto copied = [](const Placement& p) { return p.replicated > 0; };
  const auto held = [](const Placement& p) { return p.registers > 0; };
  const bool lanes = dataflow(plan) == "simt";
  const auto* product = std::get_if<LinearMma>(&plan);
  const bool plain = product == nullptr || product->fusion == LinearFusion::permute;
  const bool far = each([](const Placement& p) { return p == all_global(); });
  const bool once = each([](const Placement& p) { return p == all_shared(p.shared); });
  if (row == "GC") return lanes && far;
  if (row == "SC") return lanes && once && !far;
  if (row == "+ boundary") return lanes && once && !far;
  if (row == "+ registers") return lanes && each(held) && !some(copied);
  if (row == "+ dataflow") return !lanes && !some(copied);
  if (row == "+ fusion" || row == "+ permutation") {
    return dataflow(plan) == "mma" && !some(copied) && product != nullptr &&
           plain == (row == "+ permutation");
  }
  if (row == "+ copies") return some(copied);
  if (row == "GC*") return far;
  if (row == "SC*") return once && !far;
  return row == "best";
}

TEST(Ablate, RowsObeyTheirRestrictionsAndHaveTheBestOfWhatWasMeasured) {
  for (const Problem& problem : problems()) {
    for (const std::size_t budget : {1u, 5u, 40u, 100u}) {
      SCOPED_TRACE(to_json(problem).dump() + " " + std::to_string(budget));
      Fake fake(problem);
      const Ablation result = fake.run(budget);
      EXPECT_LE(result.measurements.size(), budget);
      EXPECT_GE(result.measurements.size(), std::min<std::size_t>(budget, 40));
      std::set<std::string> texts;
      double least = std::numeric_limits<double>::infinity();
      for (const Measurement& each : result.measurements) {
        EXPECT_TRUE(texts.insert(to_json(each.plan).dump()).second) << "measured twice";
        least = std::min(least, each.time_us);
      }
      for (std::size_t i = 0; i < result.rows.size(); ++i) {
        const AblationRow& row = fake.space().rows()[i];
        SCOPED_TRACE(row.name);
        std::size_t plans = 0;
        double fastest = std::numeric_limits<double>::infinity();
        for (const Measurement& each : result.measurements) {
          if (!fake.space().variant_of(row, each.plan)) continue;
          EXPECT_TRUE(obeys(row.name, each.plan, problem)) << to_json(each.plan).dump();
          ++plans;
          fastest = std::min(fastest, each.time_us);
        }
        EXPECT_EQ(result.rows[i].plans, plans);
        EXPECT_EQ(result.rows[i].best.has_value(), plans > 0);
        EXPECT_EQ(result.rows[i].why.empty(), plans > 0) << result.rows[i].why;
        if (plans > 0) {
          EXPECT_EQ(result.best(i)->time_us, fastest);
        }
        EXPECT_TRUE(plans > 0 || budget < 40 || !row.refused.empty());
      }
      ASSERT_TRUE(result.best(fake.row("best")));
      EXPECT_EQ(result.best(fake.row("best"))->time_us, least);
    }
  }
}

// GC* and SC* are the best of all plans with codebooks there, in any fusion. The search must find
// such a plan, or one close to it, with no more plans than the winner had.
TEST(Ablate, BaselinesAreTunedAsTheWinnerIs) {
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(to_json(problem).dump());
    Fake fake(problem);
    const Ablation result = fake.run(200);
    const GpuSpec gpu = find_gpu("h200");
    for (const std::string name : {"GC*", "SC*"}) {
      const AblationRow& row = fake.space().rows()[fake.row(name)];
      if (!row.refused.empty()) continue;
      double least = std::numeric_limits<double>::infinity();
      for (const Plan& shape : fake.space().shapes()) {
        for (const PlacementRule& rule : row.rules) {
          const Laid laid = lay(shape, rule, problem, gpu, {});
          if (laid.verdict.ok) least = std::min(least, formula(laid.plan, problem));
        }
      }
      EXPECT_LE(result.best(fake.row(name))->time_us, 1.05 * least) << name;
    }
  }
}

// If plans take what the cost model expects, a row finds its fastest after a few plans.
TEST(Ablate, WhatTheCostModelExpectsToBeFastestIsTried) {
  const GpuSpec gpu = find_gpu("h200");
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(to_json(problem).dump());
    Fake fake(problem);
    CostModel model(problem, gpu, {});
    constexpr double kUnknown = 1e6;
    const auto expected_us = [&](const Plan& plan) {
      const auto cost = model(plan);
      return cost ? cost->us : kUnknown;
    };
    fake.spoil = [&](Measurement& each) { each.time_us = expected_us(each.plan); };
    const Ablation result = fake.run(60);
    for (const std::string name : {"GC", "SC", "GC*", "SC*"}) {
      SCOPED_TRACE(name);
      const AblationRow& row = fake.space().rows()[fake.row(name)];
      if (!row.refused.empty()) continue;
      double least = kUnknown;
      for (const Plan& shape : fake.space().shapes()) {
        for (const PlacementRule& rule : row.rules) {
          const Laid laid = lay(shape, rule, problem, gpu, {});
          if (!laid.verdict.ok || !obeys(name, laid.plan, problem)) continue;
          if (dataflow(laid.plan) != "sliced_codebook")
            least = std::min(least, expected_us(laid.plan));
        }
      }
      ASSERT_TRUE(result.best(fake.row(name)));
      EXPECT_EQ(result.best(fake.row(name))->time_us, least);
    }
  }
}

TEST(Ablate, TheWinnersShapeIsTriedWithEveryBaseline) {
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(to_json(problem).dump());
    Fake fake(problem);
    const Ablation result = fake.run(120);
    const Plan winner = result.best(fake.row("best"))->plan;
    for (const std::string name : {"GC*", "SC*"}) {
      const AblationRow& row = fake.space().rows()[fake.row(name)];
      for (const PlacementRule& rule : row.rules) {
        const Laid laid = lay(winner, rule, problem, find_gpu("h200"), {});
        if (!laid.verdict.ok) continue;
        EXPECT_TRUE(std::any_of(result.measurements.begin(), result.measurements.end(),
                                [&](const Measurement& each) { return each.plan == laid.plan; }))
            << name << to_json(laid.plan).dump();
      }
    }
  }
}

TEST(Ablate, EqualRunsMeasureEqualPlans) {
  Fake fake(problems().front());
  const Ablation a = fake.run(60);
  const Ablation b = fake.run(60);
  ASSERT_EQ(a.measurements.size(), b.measurements.size());
  for (std::size_t i = 0; i < a.measurements.size(); ++i) {
    EXPECT_EQ(a.measurements[i].plan, b.measurements[i].plan);
  }
}

TEST(Ablate, WrongPlansAndTimesThatAreNoneNeverWin) {
  Fake fake(problems().front());
  fake.spoil = [](Measurement& each) {
    if (dataflow(each.plan) == "simt") {
      each.outcome = Outcome::wrong;
      each.why = "rel_err 1.0";
      each.time_us = 1e-3;
    } else if (dataflow(each.plan) == "lut") {
      each.time_us = std::numeric_limits<double>::quiet_NaN();
    }
  };
  const Ablation result = fake.run(150);
  for (const std::string name : {"GC", "SC", "+ boundary", "+ registers"}) {
    EXPECT_EQ(result.best(fake.row(name)), nullptr) << name;
    EXPECT_EQ(result.rows[fake.row(name)].why, "rel_err 1.0") << name;
    EXPECT_FALSE(result.ratio(fake.row("best"), fake.row(name))) << name;
  }
  EXPECT_EQ(dataflow(result.best(fake.row("best"))->plan), "mma");
  fake.spoil = [](Measurement& each) { each.time_us = 0; };
  const Ablation nothing = fake.run(30);
  EXPECT_EQ(nothing.best(fake.row("best")), nullptr);
  EXPECT_EQ(nothing.rows[fake.row("best")].why, "no plan has a time");
}

TEST(Ablate, RatiosAreOfTimes) {
  Fake fake(problems().front());
  const Ablation result = fake.run(100);
  const std::size_t a = fake.row("best");
  const std::size_t b = fake.row("GC");
  EXPECT_EQ(*result.ratio(a, b), result.best(a)->time_us / result.best(b)->time_us);
  EXPECT_EQ(*result.ratio(a, a), 1);
  EXPECT_LE(*result.ratio(a, fake.row("SC*")), 1);
}

}  // namespace
}  // namespace vqgen
