// Whole tunings on synthetic landscapes: what they reach, what they keep, and what they survive.
#include "runtime/tuning/search/tune.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/message_of.h"
#include "tests/tuning/landscape.h"

namespace vqgen {
namespace {

TuneResult tuned(const test::Landscape& land, const TuneOptions& options,
                 const NoiseOptions& replay = {}) {
  NoisyReplay evaluator(land.recorded, replay);
  return tune(land.problem, land.gpu, evaluator, options);
}

std::vector<Problem> several_problems() {
  Gemm gemm;
  gemm.shape = {64, 2048, 2048};
  gemm.weights = find_format("gptvq-2", "test");
  return {test::gemv_problem(), test::attention_problem(), gemm};
}

TEST(Tune, ExhaustiveFindsTheBestAndRandomTheSame) {
  for (const Problem& problem : several_problems()) {
    const test::Landscape land = test::landscape(problem, 11);
    const TuneResult all = tuned(land, test::options_of(StrategyName::exhaustive, 0));
    EXPECT_LE(all.row.time_us, land.best_us() * (1 + all.row.noise));
    EXPECT_EQ(all.trials.size(), land.space.candidates.size());
    EXPECT_EQ(all.row.candidates, static_cast<int>(all.trials.size()));
    EXPECT_TRUE(all.exhausted);
    EXPECT_EQ(all.space, land.space.feasible);
    const TuneResult random = tuned(land, test::options_of(StrategyName::random, 0));
    EXPECT_EQ(to_json(random.row), to_json(all.row));
  }
}

// The figure that a search must reach on a device, on landscapes that the model gets wrong.
TEST(Tune, ModelAndLocalComeWithinThreePercentInFewHundred) {
  for (const Problem& problem : several_problems()) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      const test::Landscape land = test::landscape(problem, seed);
      for (const StrategyName name : {StrategyName::model, StrategyName::local}) {
        const TuneResult result = tuned(land, test::options_of(name, 400));
        EXPECT_LE(result.row.time_us, land.best_us() * 1.03)
            << op_name(problem) << " seed " << seed << " " << enum_name(name) << " of "
            << land.space.candidates.size();
        EXPECT_LE(result.trials.size(), 400u);
      }
    }
  }
}

TEST(Tune, FillsTheRow) {
  const test::Landscape land = test::landscape(test::gemv_problem(), 11);
  TuneOptions options = test::options_of(StrategyName::model, 100);
  options.policy.codes = "zipf:1";
  options.environment = {"NVIDIA H200", "1", "nvrtc", "0"};
  const TuneResult result = tuned(land, options, {.sigma = 0.003});
  const TunedRow& row = result.row;
  const Json json = to_json(row);
  EXPECT_EQ(to_json(read_tuned_row(JsonCursor(json, "row"))), json);
  EXPECT_EQ(row.gpu, land.gpu.name);
  EXPECT_EQ(row.policy.codes, "zipf:1");
  EXPECT_EQ(row.policy.rounds, options.rounds);
  EXPECT_EQ(row.default_plan, choose(land.problem, land.gpu));
  EXPECT_NEAR(row.default_us, land.us(row.default_plan), 0.01 * row.default_us);
  EXPECT_NEAR(row.time_us, land.us(row.plan), 0.01 * row.time_us);
  EXPECT_NEAR(row.runner_up_us, land.us(row.runner_up), 0.01 * row.runner_up_us);
  EXPECT_NE(row.runner_up, row.plan);
  EXPECT_EQ(row.rel_err, 1e-4);
  EXPECT_EQ(result.trials.front().measurement.plan, row.default_plan);
  const auto finalists = std::count_if(result.trials.begin(), result.trials.end(),
                                       [](const Trial& each) { return each.finalist; });
  EXPECT_GE(finalists, 2);
  EXPECT_LE(finalists, 8);
  for (const Trial& each : result.trials) EXPECT_EQ(each.finalist, each.final_us > 0);
  ASSERT_TRUE(result.winner_rank);
  EXPECT_LT(*result.winner_rank, result.space);
}

TEST(Tune, OtherNoiseGivesTheSameWinnerOrOneWithinTheBand) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const test::Landscape land = test::landscape(test::gemv_problem("aqlm-3"), seed % 3);
    const TuneOptions options = test::options_of(StrategyName::model, 200);
    const auto run = [&](std::uint64_t noise) {
      return tuned(land, options, {.seed = noise, .sigma = 0.01, .drift = 0.05}).row;
    };
    const TunedRow a = run(seed);
    const TunedRow b = run(seed + 100);
    if (a.plan == b.plan) continue;
    const double ratio = land.us(a.plan) / land.us(b.plan);
    const double band = 1 + a.noise + b.noise;
    EXPECT_LT(ratio, band);
    EXPECT_GT(ratio, 1 / band);
  }
}

TEST(Tune, TheIncumbentStaysWithinTheNoiseAndGoesBeyond) {
  test::Landscape land = test::landscape(test::gemv_problem(), 11);
  const TuneOptions options = test::options_of(StrategyName::exhaustive, 0);
  const Plan best = tuned(land, options).row.plan;
  const std::size_t last = land.space.by_cost.back();
  Measurement& other = land.recorded[last];
  ASSERT_NE(other.plan, best);
  TuneOptions with = options;
  with.incumbent = other.plan;
  other.time_us = land.best_us() * 1.004;
  EXPECT_EQ(tuned(land, with).row.plan, other.plan);
  EXPECT_EQ(tuned(land, options).row.plan == other.plan, false);
  other.time_us = land.best_us() * 1.02;
  EXPECT_EQ(tuned(land, with).row.plan, best);
  // The incumbent is a finalist even if the search would never reach it, and however slow it is.
  other.time_us = land.best_us() * 5;
  with.most = 3;
  const TuneResult few = tuned(land, with);
  EXPECT_EQ(few.trials[1].measurement.plan, other.plan);
  EXPECT_TRUE(few.trials[1].finalist);
  with.incumbent = LinearSimt{.threads = 1024, .rows_per_block = 128};  // check() refuses it
  EXPECT_EQ(tuned(land, with).trials.size(), 3u);
  with.incumbent = AttentionSimt{};
  EXPECT_EQ(tuned(land, with).trials.size(), 3u);
}

TEST(Tune, OneCandidateIsEnough) {
  const test::Landscape land = test::landscape(test::gemv_problem(), 11);
  const TuneResult result = tuned(land, test::options_of(StrategyName::model, 1));
  EXPECT_EQ(result.trials.size(), 1u);
  EXPECT_EQ(result.row.plan, result.row.default_plan);
  EXPECT_EQ(result.row.runner_up, result.row.plan);
  EXPECT_EQ(result.row.runner_up_us, result.row.time_us);
  EXPECT_FALSE(result.exhausted);
}

TEST(Tune, BudgetHoldsFinalsIncluded) {
  const test::Landscape land = test::landscape(test::attention_problem(), 2);
  for (const double budget : {3.0, 20.0, 60.0}) {
    TuneOptions options = test::options_of(StrategyName::model, 0);
    options.budget_s = budget;
    std::vector<TuneProgress> progress;
    options.progress = [&](const TuneProgress& each) { progress.push_back(each); };
    const TuneResult result =
        tuned(land, options, {.sigma = 0.01, .candidate_s = 0.1, .round_s = 0.01});
    EXPECT_LE(result.spent_s, budget);
    EXPECT_GT(result.spent_s, budget / 3);
    ASSERT_FALSE(progress.empty());
    EXPECT_EQ(progress.back().timed + progress.back().failed, result.trials.size());
    EXPECT_EQ(progress.back().planned, land.space.candidates.size());
    EXPECT_NEAR(progress.front().default_us, result.row.default_us, 0.05 * result.row.default_us);
    for (std::size_t i = 1; i < progress.size(); ++i) {
      EXPECT_LE(progress[i].best_us, progress[i - 1].best_us);
      EXPECT_GE(progress[i].spent_s, progress[i - 1].spent_s);
    }
    for (std::size_t i = 1; i < result.trials.size(); ++i) {
      EXPECT_GT(result.trials[i].at_s, result.trials[i - 1].at_s);
    }
  }
  TuneOptions options = test::options_of(StrategyName::model, 0);
  options.budget_s = 0.01;  // less than the default takes
  EXPECT_EQ(tuned(land, options, {.candidate_s = 1}).trials.size(), 1u);
}

TEST(Tune, SurvivesWhatFails) {
  test::Landscape land = test::landscape(test::gemv_problem(), 11);
  const TuneOptions options = test::options_of(StrategyName::exhaustive, 0);
  const Plan best = tuned(land, options).row.plan;
  NoisyReplay replay(land.recorded, {});
  test::Counting evaluator(replay);
  // The fastest is killed in the finals, another returns NaN.
  std::optional<Plan> other;
  evaluator.spoil_final = [&](const Plan& plan, FinalTimes& times) {
    if (plan == best) times = {{1.0}, Outcome::hung, "after 2 s"};
    if (plan != best && plan != choose(land.problem, land.gpu) && (!other || plan == *other)) {
      other = plan;
      times.us.back() = std::numeric_limits<double>::quiet_NaN();
    }
  };
  const TuneResult result = tune(land.problem, land.gpu, evaluator, options);
  EXPECT_EQ(evaluator.finals_held, 1);
  EXPECT_NE(result.row.plan, best);
  EXPECT_NE(result.row.plan, other);
  EXPECT_LE(result.row.time_us, land.best_us() * 1.1);
  for (const Trial& each : result.trials) {
    if (each.measurement.plan != best) continue;
    EXPECT_EQ(each.measurement.outcome, Outcome::hung);
    EXPECT_NE(each.measurement.why.find("finals: after 2 s"), std::string::npos);
    EXPECT_TRUE(each.finalist);
  }
}

TEST(Tune, WhereAllFinalistsFailTheNextBestHaveTheirs) {
  const test::Landscape land = test::landscape(test::gemv_problem(), 11);
  NoisyReplay replay(land.recorded, {});
  test::Counting evaluator(replay);
  evaluator.spoil_final = [&](const Plan&, FinalTimes& times) {
    if (evaluator.finals_held < 3) times = {{}, Outcome::crashed, "signal 11"};
  };
  const TuneResult result =
      tune(land.problem, land.gpu, evaluator, test::options_of(StrategyName::exhaustive, 0));
  EXPECT_EQ(evaluator.finals_held, 3);
  EXPECT_EQ(result.row.default_us, land.us(result.row.default_plan));  // of its screening
  EXPECT_GT(result.row.time_us, land.best_us());
}

TEST(Tune, WhereNothingIsTimedItSaysWhatBecameOfTheDefault) {
  const test::Landscape land = test::landscape(test::gemv_problem(), 11);
  NoisyReplay replay(land.recorded, {});
  test::Counting evaluator(replay);
  TuneOptions options = test::options_of(StrategyName::model, 40);
  for (const double us : {std::numeric_limits<double>::quiet_NaN(), 0.0}) {
    evaluator.spoil = [&](Measurement& m) { m.time_us = us; };
    const std::string message =
        device_error([&] { tune(land.problem, land.gpu, evaluator, options); });
    EXPECT_NE(message.find("none of 40"), std::string::npos) << message;
    EXPECT_NE(message.find("default is wrong"), std::string::npos) << message;
  }
  evaluator.spoil = nullptr;
  evaluator.spoil_final = [](const Plan&, FinalTimes& times) {
    times = {{}, Outcome::crashed, "signal 11"};
  };
  EXPECT_NE(device_error([&] {
              tune(land.problem, land.gpu, evaluator, options);
            }).find("in the finals: signal 11"),
            std::string::npos);
}

TEST(Tune, TheDefaultMayFail) {
  test::Landscape land = test::landscape(test::gemv_problem(), 11);
  land.recorded[land.space.default_place].outcome = Outcome::wrong;
  const TuneResult result = tuned(land, test::options_of(StrategyName::exhaustive, 0));
  EXPECT_NE(result.row.plan, result.row.default_plan);
  EXPECT_EQ(result.row.default_us, result.row.time_us);  // no gain over an untimed plan
  const Json json = to_json(result.row);
  EXPECT_EQ(to_json(read_tuned_row(JsonCursor(json, "row"))), json);
}

TEST(Tune, InfeasibleIsSaid) {
  AttentionDecode op = std::get<AttentionDecode>(test::attention_problem());
  op.shape.head_dim = 1024;
  op.keys.vector_size = op.values.vector_size = 16;
  op.keys.index_bits = op.values.index_bits = 16;
  const test::Landscape land = test::landscape(test::gemv_problem(), 11);
  NoisyReplay replay(land.recorded, {});
  if (check(Problem(op)).ok) GTEST_SKIP() << "that has kernels by now";
  EXPECT_NE(message_of([&] { tune(op, land.gpu, replay, {}); }, ErrorKind::infeasible), "");
}

// A CPU: compiling takes a second; screening takes two calls, verifying a finalist one, and a round
// one.
class OnCpu final : public test::Counting {
 public:
  explicit OnCpu(const test::Landscape& land) : Counting(replay_), land_(land) {}
  std::vector<Measurement> screen(std::span<const Plan> plans) override {
    for (const Plan& plan : plans) spent_s_ += 1 + 2e-6 * land_.us(plan);
    return Counting::screen(plans);
  }
  std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) override {
    round_s = 0;
    for (const Plan& plan : plans) round_s += 1e-6 * land_.us(plan);
    spent_s_ += (1 + rounds) * round_s;
    finalists = plans.size();
    return Counting::finals(plans, rounds);
  }
  double spent_s() const override { return spent_s_; }

  std::size_t finalists = 0;
  double round_s = 0;  // of all finalists

 private:
  const test::Landscape& land_;
  NoisyReplay replay_{land_.recorded, {.sigma = 0.01}};
  double spent_s_ = 0;
};

TEST(Tune, OnACpuFinalsTakeWhatTheBudgetHasLeft) {
  test::Landscape land = test::landscape(test::gemv_problem(), 7);
  const double usual_us = land.us(choose(land.problem, land.gpu));
  for (const double call_s : {0.01, 0.1, 0.6, 3.0}) {
    for (Measurement& each : land.recorded) each.time_us *= call_s * 1e6 / usual_us;
    for (const double budget_s : {5.0, 10.0, 60.0, 300.0}) {
      SCOPED_TRACE(testing::Message() << call_s << " s a call, budget " << budget_s);
      TuneOptions options = test::options_of(StrategyName::model, 0);
      options.budget_s = budget_s;
      options.batch = 2;
      options.long_calls = 1;
      OnCpu evaluator(land);
      const TuneResult result = tune(land.problem, land.gpu, evaluator, options);
      // The default's screening and one round are done whatever the budget is.
      EXPECT_LE(result.spent_s, std::max(1.2 * budget_s, 1 + 4 * call_s));
      EXPECT_LE(result.row.policy.rounds, options.rounds);
      // One more round does not fit, by the screening times.
      constexpr double kNoise = 1.1;
      if (result.row.policy.rounds < options.rounds) {
        EXPECT_GT(result.spent_s + kNoise * evaluator.round_s, budget_s);
      }
      if (budget_s > 1000 * call_s) {
        EXPECT_EQ(result.row.policy.rounds, options.rounds);
      }
      if (budget_s > 50 * (1 + call_s)) {
        EXPECT_GT(result.trials.size(), 5u);
      }
      EXPECT_GE(result.row.policy.rounds, evaluator.finalists > 2 ? 3 : 1);
    }
    for (Measurement& each : land.recorded) each.time_us /= call_s * 1e6 / usual_us;
  }
}

}  // namespace
}  // namespace vqgen
