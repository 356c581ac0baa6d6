// The report of a tuned sweep: figures of hand-computed cases, the printed rows and the document.
#include "cli/tune_report.h"

#include <cmath>
#include <limits>

#include "core/plan/plan_name.h"

namespace vqgen::cli {
namespace {

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Plan lanes(int threads) {
  LinearSimt plan;
  plan.threads = threads;
  return plan;
}

Trial timed(const Plan& plan, double us, std::optional<double> expected, double at_s) {
  Trial trial;
  trial.measurement.plan = plan;
  trial.measurement.time_us = us;
  trial.measurement.low_us = us * 0.99;
  trial.measurement.high_us = us * 1.01;
  trial.expected_us = expected;
  trial.at_s = at_s;
  return trial;
}

Trial failed(const Plan& plan, Outcome outcome, const std::string& why) {
  Trial trial;
  trial.measurement.plan = plan;
  trial.measurement.outcome = outcome;
  trial.measurement.why = why;
  return trial;
}

// A default of 20 us and a winner of 10 us; one candidate is twice as slow as expected, one takes a
// fourth.
TunedProblem sample() {
  TunedProblem problem;
  problem.item.label = "o_proj rows=1";
  problem.item.weight = 3;
  problem.item.problem = Gemv{{DType::f16, {1, 512, 256}, {}}};
  TuneResult& result = problem.result;
  result.trials = {
      timed(lanes(128), 20, 10.0, 1),          failed(lanes(64), Outcome::wrong, "off by 3"),
      timed(lanes(256), 10, 40.0, 2.5),        timed(lanes(512), 15, std::nullopt, 4),
      failed(lanes(32), Outcome::hung, "5 s"), failed(lanes(96), Outcome::hung, "5 s")};
  result.trials[0].finalist = true;
  result.trials[2].finalist = true;
  result.trials[2].final_us = 10.5;
  result.space = 40;
  result.winner_rank = 6;
  result.spent_s = 5;
  TunedRow& row = result.row;
  row.problem = problem.item.problem;
  row.gpu = "NVIDIA H200";
  row.plan = lanes(256);
  row.default_plan = lanes(128);
  row.runner_up = lanes(512);
  row.time_us = 10;
  row.low_us = 9.9;
  row.high_us = 10.1;
  row.default_us = 20;
  row.runner_up_us = 15;
  row.noise = 0.012;
  row.policy.rounds = 21;
  return problem;
}

TunedProblem with_times(double default_us, double us, double weight, const std::string& label) {
  TunedProblem problem = sample();
  problem.item.label = label;
  problem.item.weight = weight;
  problem.result.row.default_us = default_us;
  problem.result.row.time_us = us;
  return problem;
}

TunedProblem untuned(const std::string& why) {
  TunedProblem problem = sample();
  problem.item.label = "untuned";
  problem.why = why;
  problem.result.row = {};
  return problem;
}

TEST(TuneFigures, TotalsAreMeansOfWhatWasTuned) {
  const TunedSweep sweep{"s",
                         "gpu",
                         {with_times(20, 10, 3, "a"), with_times(8, 1, 1, "b"), untuned("died"),
                          with_times(4, 4, 2, "c")},
                         {}};
  const TuneTotals totals = totals_of(sweep);
  EXPECT_EQ(totals.problems, 4u);
  EXPECT_EQ(totals.tuned, 3u);
  EXPECT_NEAR(totals.mean_gain, std::cbrt(2.0 * 8 * 1), 1e-12);
  EXPECT_NEAR(totals.weighted_gain, std::pow(8.0 * 8, 1.0 / 6), 1e-12);  // 2^3 8^1 1^2
  EXPECT_EQ(totals.least_gain, 1);
  EXPECT_EQ(totals.least_label, "c");
  EXPECT_EQ(totals.most_gain, 8);
  EXPECT_EQ(totals.most_label, "b");
  EXPECT_EQ(totals.default_us, 3 * 20 + 8 + 2 * 4);
  EXPECT_EQ(totals.tuned_us, 3 * 10 + 1 + 2 * 4);
  EXPECT_EQ(totals.candidates, 4u * 6);
  EXPECT_EQ(totals.spent_s, 20);
}

TEST(TuneFigures, TimesThatAreNoneMakeNoGain) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const auto& [default_us, us] : std::vector<std::pair<double, double>>{
           {0, 1}, {1, 0}, {-1, 1}, {std::nan(""), 1}, {1, std::nan("")}, {inf, 1}, {1, inf}}) {
    EXPECT_FALSE(gain_of(with_times(default_us, us, 1, "x"))) << default_us << " " << us;
  }
  const TuneTotals totals = totals_of({"s", "gpu", {with_times(0, 0, 1, "x"), untuned("y")}, {}});
  EXPECT_EQ(totals.tuned, 0u);
  EXPECT_EQ(totals.mean_gain, 0);
  EXPECT_EQ(totals_of({}).problems, 0u);
}

TEST(TuneFigures, TheModelIsJudgedByWhatHasBothTimes) {
  const ModelFigures figures = model_figures(sample().result);
  EXPECT_EQ(figures.count, 2u);
  EXPECT_NEAR(figures.factor, std::sqrt(2.0 * 4), 1e-12);
  EXPECT_NEAR(figures.worst, 4, 1e-12);
  EXPECT_EQ(model_figures({}).count, 0u);
  EXPECT_EQ(model_figures({}).factor, 1);
}

TEST(TuneFigures, FailuresAreCountedByReason) {
  const std::vector<FailureCount> failures = failures_of(sample().result);
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[0].outcome, Outcome::hung);
  EXPECT_EQ(failures[0].count, 2u);
  EXPECT_EQ(failures[1].why, "off by 3");
  EXPECT_EQ(timed_of(sample().result), 3u);
}

// The printed rows and the document.
struct Reported {
  std::string text;
  Json document;
};

Reported report(const TunedSweep& sweep) {
  Output output;
  ::testing::internal::CaptureStdout();
  for (const TunedProblem& problem : sweep.problems) report_problem(problem, output);
  report_sweep(sweep, output);
  std::fflush(stdout);
  return {::testing::internal::GetCapturedStdout(), output.document};
}

TEST(TuneReport, IsARowAProblemAndTheTotals) {
  const auto [text, document] =
      report({"llama", "NVIDIA H200", {sample(), untuned("no\ndevice")}, {{"d rows=9", "no way"}}});
  EXPECT_EQ(occurrences(text, "default us"), 1u);
  EXPECT_EQ(occurrences(text, "\n"), 8u) << text;
  const std::size_t row = text.find("o_proj rows=1 ");
  ASSERT_NE(row, std::string::npos);
  const std::string line = text.substr(row, text.find('\n', row) - row);
  for (const char* cell : {" 20.00 ", " 10.00 ", " 2.000 ", " 1.2% ", " 7/40 ", " 3/6 ", " 5 "}) {
    EXPECT_NE(line.find(cell), std::string::npos) << cell << "\n" << line;
  }
  EXPECT_NE(text.find("none: no device\n"), std::string::npos) << text;
  EXPECT_NE(text.find("skipped: d rows=9: no way\n"), std::string::npos);
  EXPECT_NE(text.find("1 of 2 problems tuned, 1 skipped; 12 candidates in 10 s"),
            std::string::npos);
  EXPECT_NE(text.find("2.000 by geometric mean, 2.000 by weight"), std::string::npos);
  EXPECT_NE(text.find("60.0 us by default, 30.0 us tuned"), std::string::npos);
}

TEST(TuneReport, TheDocumentHoldsTheSameAndAllTrials) {
  const Json document = report({"llama", "NVIDIA H200", {sample(), untuned("no")}, {}}).document;
  EXPECT_EQ(document["sweep"], "llama");
  EXPECT_EQ(document["totals"]["mean_gain"], 2);
  EXPECT_EQ(document["totals"]["most_gain"]["label"], "o_proj rows=1");
  ASSERT_EQ(document["problems"].size(), 2u);
  const Json& problem = document["problems"][0];
  EXPECT_EQ(problem["gain"], 2);
  EXPECT_EQ(problem["winner_rank"], 6);
  EXPECT_EQ(problem["row"]["plan"], plan_name(lanes(256)));
  ASSERT_EQ(problem["trials"].size(), 6u);
  EXPECT_EQ(problem["trials"][2]["plan"], plan_name(lanes(256)));
  EXPECT_EQ(problem["trials"][2]["at_s"], 2.5);
  EXPECT_EQ(problem["trials"][2]["final_us"], 10.5);
  EXPECT_FALSE(problem["trials"][0].contains("final_us"));
  EXPECT_EQ(problem["trials"][3]["expected_us"], nullptr);
  EXPECT_EQ(problem["failures"][0]["count"], 2);
  EXPECT_EQ(document["problems"][1]["why"], "no");
  EXPECT_FALSE(document["problems"][1].contains("row"));
}

TEST(TuneReport, OfNothingIsNoError) {
  const auto [text, document] = report({"empty", "gpu", {}, {}});
  EXPECT_NE(text.find("0 of 0 problems tuned"), std::string::npos);
  EXPECT_FALSE(document["totals"].contains("mean_gain"));
}

}  // namespace
}  // namespace vqgen::cli
