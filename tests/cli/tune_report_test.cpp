// The report of a tuned sweep: figures by hand-computed cases, and a page that is whole whatever
// names, reasons and times it is given.
#include "cli/tune_report.h"

#include <cmath>
#include <limits>

#include "cli/svg.h"
#include "core/files/files.h"
#include "core/plan/plan_name.h"
#include "tests/in_folder.h"

namespace vqgen::cli {
namespace {

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Plan lanes(int threads) {
  LinearLanes plan;
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

// Default of 20 us, winner of 10 us; one candidate twice as slow as expected, one a fourth.
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

// What is printed, and the document.
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

class TunePage : public test::InFolder {
 protected:
  // The page, which must be well-formed and free of what browsers cannot draw.
  std::string page(const TunedSweep& sweep) const {
    const std::filesystem::path path = folder_ / "page.html";
    write_html(path, sweep);
    const std::string text = read_text(path);
    EXPECT_EQ(text, tune_html(sweep));
    const std::string check =
        "python3 -c 'import sys, xml.dom.minidom as d; d.parse(sys.argv[1])' " + path.string();
    EXPECT_EQ(std::system(check.c_str()), 0);
    for (const char* broken : {"=\"nan", "=\"inf", "=\"-nan", " nan", ",nan", "<script", "href="}) {
      EXPECT_EQ(text.find(broken), std::string::npos) << broken;
    }
    // The one address is the name of a language.
    EXPECT_EQ(occurrences(text, "http"),
              occurrences(text, "xmlns=\"http://www.w3.org/1999/xhtml\"") +
                  occurrences(text, "xmlns=\"http://www.w3.org/2000/svg\""));
    return text;
  }
};

TEST_F(TunePage, ShowsLandscapeConvergenceFinalistsAndFailures) {
  const std::string text = page({"llama", "NVIDIA H200", {sample()}, {{"d", "no way"}}});
  EXPECT_EQ(occurrences(text, "<svg "), 2u);
  EXPECT_EQ(occurrences(text, "<circle "), 2u + 2);  // candidates with both times, and two rings
  EXPECT_EQ(occurrences(text, "<polyline "), 2u);
  EXPECT_EQ(occurrences(text, ">winner</text>"), 1u);
  EXPECT_EQ(occurrences(text, ">default</text>"), 1u);
  EXPECT_NE(text.find("a factor of 2.83 by geometric mean of 2 candidates, 4.00 at worst"),
            std::string::npos);
  EXPECT_NE(text.find("rank by the model is 7 of 40"), std::string::npos);
  EXPECT_NE(text.find("<td>2</td><td class=\"text\">hung</td><td class=\"text\">5 s</td>"),
            std::string::npos);
  EXPECT_EQ(occurrences(text, "<td>10.50</td><td>10.00</td><td>9.90 to 10.10</td><td>40.00</td>"),
            1u);
  EXPECT_LT(text.find("<td>10.50</td>"), text.find("<td>-</td><td>20.00</td>"));
  EXPECT_NE(text.find("no way"), std::string::npos);
  EXPECT_NE(text.find("prefers-color-scheme: dark"), std::string::npos);
}

// A tuning of a problem that timed a plan of each dataflow of its op, and their names.
std::pair<TunedProblem, std::vector<std::string>> of_all_dataflows(const Problem& problem) {
  TunedProblem all = sample();
  std::vector<std::string> names;
  all.item.problem = all.result.row.problem = problem;
  all.result.trials.clear();
  for_each_dataflow([&](const auto& each) {
    if (!is_plan_of(each, problem)) return;
    all.result.trials.push_back(timed(each, 10, 20.0 + static_cast<double>(names.size()), 1));
    all.result.row.plan = all.result.row.default_plan = each;
    names.emplace_back(dataflow_name(each));
  });
  return {all, names};
}

TEST_F(TunePage, EveryDataflowOfEveryOpHasItsColourAndName) {
  const auto expect_all = [&](const Problem& problem, std::size_t count) {
    const auto [all, names] = of_all_dataflows(problem);
    EXPECT_EQ(names.size(), count);
    const std::string text = page({"s", "gpu", {all}, {}});
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string flow = "--flow-" + std::to_string(i);
      EXPECT_EQ(occurrences(text, flow + ": #"), 2u) << flow;         // light and dark
      EXPECT_EQ(occurrences(text, "var(" + flow + ")"), 2u) << flow;  // a point, and the legend
      EXPECT_EQ(occurrences(text, ">" + names[i] + "</text>"), 1u) << names[i];
    }
  };
  expect_all(Gemv{{DType::f16, {1, 512, 256}, {}}}, 5);
  expect_all(Gemm{{DType::f16, {16, 512, 256}, {}}}, 5);
  expect_all(AttentionDecode{}, 4);
  expect_all(KvAppend{}, 1);
}

TEST_F(TunePage, SurvivesAnyText) {
  TunedProblem problem = sample();
  problem.item.label = "<b>&\"o\"\xff\n]]>";
  problem.result.trials[1].measurement.why = "a < b && c > d";
  TunedProblem none = untuned("<script>alert(1)</script>");
  const std::string text = page({"<&\">", "<gpu>", {problem, none}, {{"<i>", "&"}}});
  EXPECT_EQ(occurrences(text, "&lt;b&gt;&amp;\"o\"\xef\xbf\xbd ]]&gt;"), 4u)
      << text.substr(0, 9000);
  EXPECT_EQ(occurrences(text, "a &lt; b &amp;&amp; c &gt; d"), 1u);
  EXPECT_EQ(occurrences(text, "&lt;script&gt;"), 2u);
  EXPECT_EQ(text.find("<gpu>"), std::string::npos);
}

TEST_F(TunePage, ShowsTuningsWithoutTimes) {
  TunedProblem nothing = untuned("no device");
  nothing.result.trials.clear();
  TunedProblem failures = untuned("all failed");
  failures.result.trials = {failed(lanes(64), Outcome::crashed, "signal 11")};
  EXPECT_EQ(landscape_svg(nothing), "");
  EXPECT_EQ(convergence_svg(failures), "");
  const std::string text = page({"s", "gpu", {nothing, failures}, {}});
  EXPECT_EQ(occurrences(text, "<svg "), 0u);
  EXPECT_EQ(occurrences(text, "Not tuned: no device"), 1u);
  EXPECT_EQ(occurrences(text, "signal 11"), 1u);
  page({"s", "gpu", {}, {}});
}

// One candidate, equal times, times of all sizes, and numbers that are none.
TEST_F(TunePage, DrawsWhateverTimesThereAre) {
  TunedProblem one = sample();
  one.result.trials = {timed(lanes(128), 7, 7.0, 0)};
  one.result.spent_s = 0;
  TunedProblem far = sample();
  far.result.trials = {timed(lanes(128), 1e-3, 1e6, 1), timed(lanes(256), 1e6, 1e-3, 2)};
  TunedProblem odd = sample();
  odd.result.trials = {timed(lanes(128), std::nan(""), 3.0, 1), timed(lanes(128), 3, 0.0, 2),
                       timed(lanes(256), 3, -1.0, std::nan(""))};
  odd.result.spent_s = std::numeric_limits<double>::infinity();
  odd.result.row.default_us = 0;
  const std::string text = page({"s", "gpu", {one, far, odd}, {}});
  EXPECT_EQ(occurrences(text, "<svg "), 2u + 2 + 1);
  EXPECT_EQ(occurrences(text, "<polyline "), 6u);
}

// The best so far never rises.
TEST_F(TunePage, ConvergenceFallsOnly) {
  const std::string svg = convergence_svg(sample());
  const std::size_t start = svg.find("points=\"") + 8;
  std::istringstream corners(svg.substr(start, svg.find('"', start) - start));
  double x = 0, y = 0, last_x = -1, last_y = -1;
  char comma = 0;
  int count = 0;
  while (corners >> x >> comma >> y) {
    EXPECT_GE(x, last_x);
    EXPECT_GE(y, last_y);  // downwards on the page
    last_x = x;
    last_y = y;
    ++count;
  }
  EXPECT_EQ(count, 2 * 3);  // a step each of three, and the end
}

TEST(Svg, TicksAreFewAndRound) {
  for (const double most : {1e-9, 0.3, 1.0, 4.9, 5.0, 7.0, 99.0, 1e12}) {
    const double step = tick_step(most);
    EXPECT_LE(most / step, 5.0001) << most;
    EXPECT_GT(most / step, 1.9) << most;
  }
}

}  // namespace
}  // namespace vqgen::cli
