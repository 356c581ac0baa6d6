// Strategies by their promises: everything once, nothing twice, equal for equal answers. Neighbours
// and corrected expectations are checked against brute force and by hand.
#include "runtime/tuning/search/strategies.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "heuristics/choose.h"
#include "heuristics/space.h"
#include "runtime/prepare.h"
#include "tests/core/access_counts_samples.h"
#include "tests/tuning/landscape.h"

namespace vqgen {
namespace {

constexpr std::array kAllStrategies{StrategyName::exhaustive, StrategyName::random,
                                    StrategyName::local, StrategyName::model};

// One in `step` candidates of a space, so that brute force is feasible.
TuningSpace thinned(const test::Landscape& land, std::size_t step) {
  TuningSpace space;
  for (std::size_t i = 0; i < land.space.candidates.size(); i += step) {
    space.candidates.push_back(land.space.candidates[i]);
  }
  space.feasible = space.candidates.size();
  space.by_cost = places_by_cost(space.candidates);
  return space;
}

std::vector<std::size_t> asked_in_all(StrategyName name, const TuningSpace& space,
                                      const test::Landscape& land, std::size_t most,
                                      std::uint64_t seed) {
  const auto strategy = make_strategy(name, space, seed);
  History history(space.candidates.size());
  history.add(space.default_place, land.us(space.candidates[space.default_place].plan));
  std::vector<std::size_t> order;
  while (true) {
    const std::vector<std::size_t> batch = strategy->next(history, most);
    EXPECT_LE(batch.size(), most);
    if (batch.empty()) return order;
    for (const std::size_t place : batch) {
      EXPECT_FALSE(history.asked[place]) << place;
      // Every third fails.
      const double us = land.us(space.candidates[place].plan);
      history.add(place, place % 3 == 2 ? std::nullopt : std::optional(us));
      order.push_back(place);
    }
  }
}

// A gain must not be reported over a default that nobody gets.
TEST(TuningSpace, TheDefaultOfAProfileIsPlacedAsItIsWithoutATable) {
  std::vector<std::int64_t> counts(256, 1);
  std::fill_n(counts.begin(), 4, 200);
  AccessCounts profile = profile_of({{counts}, {counts}}, 2);
  profile.operand = Operand::weights;
  profile.format = find_format("aqlm-2x8", "test");
  const GpuSpec gpu = find_gpu("h200");
  const std::span<const AccessCounts> profiles(&profile, 1);
  for (const LinearShape shape : {LinearShape{1, 1024, 1024}, LinearShape{1, 64, 4096}}) {
    const Problem each = test::gemv_problem("aqlm-2x8", shape);
    const TuningSpace space = tuning_space(each, gpu, profiles, std::nullopt);
    Config config;
    config.problem = each;
    const Plan& chosen = space.candidates[space.default_place].plan;
    EXPECT_EQ(chosen, plan_with(config, gpu, profiles).plan);
    EXPECT_TRUE(check(chosen, each, gpu).ok);
    const auto times = std::count_if(space.candidates.begin(), space.candidates.end(),
                                     [&](const Candidate& it) { return it.plan == chosen; });
    EXPECT_EQ(times, 1);
  }
}

TEST(Strategies, ProposeEachCandidateOnce) {
  const test::Landscape land = test::landscape(test::attention_problem(), 1);
  const TuningSpace space = thinned(land, 13);
  for (const StrategyName name : kAllStrategies) {
    for (const std::size_t most : {1u, 7u, 16u, 5000u}) {
      SCOPED_TRACE(std::string(enum_name(name)) + " " + std::to_string(most));
      std::vector<std::size_t> order = asked_in_all(name, space, land, most, 3);
      std::sort(order.begin(), order.end());
      EXPECT_EQ(std::adjacent_find(order.begin(), order.end()), order.end());
      EXPECT_EQ(order.size(), space.candidates.size() - 1);
    }
  }
}

TEST(Strategies, AreFunctionsOfSeedAndAnswers) {
  const test::Landscape land = test::landscape(test::gemv_problem(), 2);
  const TuningSpace space = thinned(land, 7);
  for (const StrategyName name : kAllStrategies) {
    SCOPED_TRACE(enum_name(name));
    const auto first = asked_in_all(name, space, land, 16, 5);
    EXPECT_EQ(asked_in_all(name, space, land, 16, 5), first);
    if (name != StrategyName::exhaustive) {
      EXPECT_NE(asked_in_all(name, space, land, 16, 6), first);
    }
  }
}

TEST(Strategies, ExhaustiveGoesByTheModel) {
  const test::Landscape land = test::landscape(test::gemv_problem(), 2);
  const TuningSpace space = thinned(land, 7);
  std::vector<std::size_t> order = space.by_cost;
  std::erase(order, space.default_place);
  EXPECT_EQ(asked_in_all(StrategyName::exhaustive, space, land, 16, 1), order);
  double before = 0;
  for (const std::size_t place : space.by_cost) {
    ASSERT_TRUE(space.candidates[place].expected_us);
    EXPECT_GE(*space.candidates[place].expected_us, before);
    before = *space.candidates[place].expected_us;
  }
}

TEST(Strategies, OneCandidateLeavesNothingToPropose) {
  const test::Landscape land = test::landscape(test::gemv_problem(), 2);
  const TuningSpace space = thinned(land, land.space.candidates.size());
  ASSERT_EQ(space.candidates.size(), 1u);
  for (const StrategyName name : kAllStrategies) {
    EXPECT_TRUE(asked_in_all(name, space, land, 16, 1).empty());
  }
}

TEST(Strategies, ModelLeavesAKindThatFailsOrIsSlow) {
  const test::Landscape land = test::landscape(test::attention_problem(), 4);
  const TuningSpace& space = land.space;
  const std::string kind = space.candidates[space.by_cost.front()].kind;
  for (const bool fails : {true, false}) {
    const auto strategy = make_strategy(StrategyName::model, space, 1);
    History history(space.candidates.size());
    std::size_t of_kind = 0;
    for (int batch = 0; batch < 20; ++batch) {
      of_kind = 0;
      for (const std::size_t place : strategy->next(history, 16)) {
        const Candidate& each = space.candidates[place];
        const double us = each.guess_us;
        if (each.kind == kind) ++of_kind;
        if (each.kind != kind) {
          history.add(place, us);
        } else {
          history.add(place, fails ? std::nullopt : std::optional(us * 6));
        }
      }
    }
    EXPECT_LE(of_kind, 4u) << "still asks for " << kind;
  }
}

TEST(TuningSpace, HoldsTheSpaceTheDefaultTheRulesPlanAndTheIncumbentOnce) {
  const GpuSpec gpu = find_gpu("h200");
  for (const Problem& problem : {test::gemv_problem(), test::attention_problem()}) {
    const TuningSpace plain = tuning_space(problem, gpu, {}, std::nullopt);
    EXPECT_EQ(plain.feasible, space(problem, gpu, {.most = 0}).plans.size());
    EXPECT_LE(plain.candidates.size(), plain.feasible + 2);
    EXPECT_EQ(plain.candidates[plain.default_place].plan, choose(problem, gpu));
    ASSERT_TRUE(plain.rules);
    EXPECT_FALSE(plain.incumbent);
    std::set<std::string> names;
    for (const Candidate& each : plain.candidates) {
      EXPECT_TRUE(names.insert(plan_name(each.plan)).second);
      EXPECT_TRUE(check(each.plan, problem, gpu).ok);
      EXPECT_GT(each.guess_us, 0);
      EXPECT_FALSE(each.kind.empty());
    }
    EXPECT_EQ(plain.by_cost.size(), plain.candidates.size());
    const Plan inside = plain.candidates[3].plan;
    EXPECT_EQ(tuning_space(problem, gpu, {}, inside).incumbent, 3u);
    EXPECT_EQ(tuning_space(problem, gpu, {}, inside).candidates.size(), plain.candidates.size());
    Plan outside = inside;
    std::visit(
        [](auto& plan) {
          if constexpr (requires { plan.splits; }) plan.splits = 3;
        },
        outside);
    if (!check(outside, problem, gpu).ok || names.contains(plan_name(outside))) continue;
    const TuningSpace with = tuning_space(problem, gpu, {}, outside);
    EXPECT_EQ(with.incumbent, plain.candidates.size());
    EXPECT_EQ(with.candidates.back().plan, outside);
  }
}

// The space leaves out methods of papers, but a plan that was tuned with one is raced.
TEST(TuningSpace, AnIncumbentKeepsItsMethodOfAPaper) {
  Int8Quantize op;
  op.shape = {.tokens = 4096, .channels = 512, .scales = Scales::computed};
  const Plan tuned = ScalarForms{.form = ScalarForm::coarsened, .vector = 1, .tokens = 8};
  const TuningSpace space = tuning_space(op, find_gpu("h200"), {}, tuned);
  ASSERT_TRUE(space.incumbent);
  EXPECT_EQ(*space.incumbent, space.feasible);
  EXPECT_EQ(space.candidates.at(*space.incumbent).plan, tuned);
}

TEST(Neighbours, DifferInOneField) {
  for (const Problem& problem : {test::gemv_problem(), test::attention_problem()}) {
    const TuningSpace space = thinned(test::landscape(problem, 1), 11);
    const Neighbours neighbours(space.candidates);
    std::size_t pairs = 0;
    for (std::size_t a = 0; a < space.candidates.size(); ++a) {
      const PlanAxes axes = plan_axes(space.candidates[a].plan);
      std::vector<std::size_t> expected;
      for (std::size_t b = 0; b < space.candidates.size(); ++b) {
        if (space.candidates[a].plan.index() != space.candidates[b].plan.index()) continue;
        const PlanAxes other = plan_axes(space.candidates[b].plan);
        int differing = 0;
        for (std::size_t i = 0; i < axes.size(); ++i) differing += axes[i] != other[i] ? 1 : 0;
        if (differing == 1) expected.push_back(b);
      }
      pairs += expected.size();
      ASSERT_EQ(neighbours.of(a), expected) << a;
    }
    EXPECT_GT(pairs, 0u);
  }
}

TEST(CostCorrection, IsTheModelWhereNothingWasMeasured) {
  const test::Landscape land = test::landscape(test::gemv_problem(), 3);
  const auto& candidates = land.space.candidates;
  CostCorrection correction(candidates);
  correction.learn(History(candidates.size()));
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    ASSERT_EQ(correction.us(i), candidates[i].guess_us);
  }
}

// All plans of a dataflow take twice the expected time: the more were measured, the closer to two
// is the factor.
TEST(CostCorrection, ComesNearerToWhatIsMeasured) {
  const test::Landscape land = test::landscape(test::gemv_problem(), 3);
  const auto& candidates = land.space.candidates;
  CostCorrection correction(candidates);
  History history(candidates.size());
  const std::size_t unseen = land.space.by_cost[63];
  double before = *candidates[unseen].expected_us;
  const double twice = 2 * before;
  for (std::size_t i = 0; i < 60; ++i) {
    const std::size_t place = land.space.by_cost[i];
    history.add(place, *candidates[place].expected_us * 2);
    if (i % 20 != 19) continue;
    correction.learn(history);
    const double now = correction.us(unseen);
    EXPECT_GT(now, before * 0.995);  // a field's value may be shared by few of a batch
    EXPECT_LT(now, twice * 1.001);   // of fields that several share, each takes a part
    before = now;
  }
  EXPECT_GT(before, 0.85 * twice);
}

}  // namespace
}  // namespace vqgen
