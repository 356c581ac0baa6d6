#include "cli/tune_report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/plan/plan_name.h"
#include "heuristics/space.h"
#include "runtime/tuning/journal/journal.h"

namespace vqgen::cli {
namespace {

Json trial_json(const Trial& trial) {
  Json json = to_json(trial.measurement);
  json["expected_us"] = json_or_null(trial.expected_us);
  json["at_s"] = trial.at_s;
  json["finalist"] = trial.finalist;
  if (trial.final_us > 0) json["final_us"] = trial.final_us;
  return json;
}

Json problem_report_json(const TunedProblem& problem) {
  const TuneResult& result = problem.result;
  Json json = {{"label", problem.item.label},
               {"weight", problem.item.weight},
               {"problem", to_json(problem.item.problem)},
               {"space", result.space},
               {"timed", timed_of(result)},
               {"spent_s", result.spent_s},
               {"exhausted", result.exhausted},
               {"failures", Json::array()},
               {"trials", Json::array()}};
  if (problem.why.empty()) {
    json["row"] = to_json(result.row);
    json["gain"] = json_or_null(gain_of(problem));
    json["winner_rank"] = json_or_null(result.winner_rank);
  } else {
    json["why"] = problem.why;
  }
  const ModelFigures model = model_figures(result);
  json["model"] = {{"count", model.count}, {"factor", model.factor}, {"worst", model.worst}};
  for (const FailureCount& each : failures_of(result)) {
    json["failures"].push_back(
        {{"outcome", enum_name(each.outcome)}, {"why", each.why}, {"count", each.count}});
  }
  for (const Trial& trial : result.trials) json["trials"].push_back(trial_json(trial));
  return json;
}

void print_problem(const TunedProblem& problem, const Output& output) {
  const TuneResult& result = problem.result;
  const std::string label = one_line(problem.item.label);
  if (!problem.why.empty()) {
    output.line("{:<46} none: {}", label, one_line(problem.why));
    return;
  }
  output.line(
      "{:<46} {:>9.2f} {:>9.2f} {:>6} {:>5.1f}% {:>9} {:>9} {:>6.0f}  {}", label,
      result.row.default_us, result.row.time_us, ratio_text(gain_of(problem), 3),
      100 * result.row.noise,
      result.winner_rank ? fmt::format("{}/{}", *result.winner_rank + 1, result.space) : "-",
      fmt::format("{}/{}", timed_of(result), result.trials.size()), result.spent_s,
      kind_of(result.row.plan, problem.item.problem));
}

Json totals_json(const TuneTotals& totals) {
  Json json = {{"problems", totals.problems},
               {"tuned", totals.tuned},
               {"candidates", totals.candidates},
               {"spent_s", totals.spent_s}};
  if (totals.tuned == 0) return json;
  json["mean_gain"] = totals.mean_gain;
  json["weighted_gain"] = totals.weighted_gain;
  json["least_gain"] = {{"gain", totals.least_gain}, {"label", totals.least_label}};
  json["most_gain"] = {{"gain", totals.most_gain}, {"label", totals.most_label}};
  json["default_us"] = totals.default_us;
  json["tuned_us"] = totals.tuned_us;
  return json;
}

// Trials with a time of the finals, fastest first.
std::vector<const Trial*> finalists_of(const TuneResult& result) {
  std::vector<const Trial*> finalists;
  for (const Trial& trial : result.trials) {
    if (trial.finalist && trial.final_us > 0) finalists.push_back(&trial);
  }
  std::stable_sort(finalists.begin(), finalists.end(),
                   [](const Trial* a, const Trial* b) { return a->final_us < b->final_us; });
  return finalists;
}

}  // namespace

std::optional<double> gain_of(const TunedProblem& problem) {
  const TunedRow& row = problem.result.row;
  if (!problem.why.empty() || !is_time(row.default_us) || !is_time(row.time_us)) return {};
  return row.default_us / row.time_us;
}

ModelFigures model_figures(const TuneResult& result) {
  ModelFigures figures;
  double sum = 0, worst = 0;
  for (const Trial& trial : result.trials) {
    const double us = trial.measurement.time_us;
    if (trial.measurement.outcome != Outcome::timed || !trial.expected_us) continue;
    if (!is_time(us) || !is_time(*trial.expected_us)) continue;
    const double off = std::abs(std::log(us / *trial.expected_us));
    sum += off;
    worst = std::max(worst, off);
    ++figures.count;
  }
  if (figures.count == 0) return figures;
  figures.factor = std::exp(sum / static_cast<double>(figures.count));
  figures.worst = std::exp(worst);
  return figures;
}

std::vector<FailureCount> failures_of(const TuneResult& result) {
  std::map<std::pair<Outcome, std::string>, std::size_t> counts;
  for (const Trial& trial : result.trials) {
    const Measurement& m = trial.measurement;
    if (m.outcome != Outcome::timed) ++counts[{m.outcome, m.why}];
  }
  std::vector<FailureCount> all;
  for (const auto& [key, count] : counts) all.push_back({key.first, key.second, count});
  std::stable_sort(all.begin(), all.end(),
                   [](const FailureCount& a, const FailureCount& b) { return a.count > b.count; });
  return all;
}

std::size_t timed_of(const TuneResult& result) {
  return static_cast<std::size_t>(std::count_if(
      result.trials.begin(), result.trials.end(),
      [](const Trial& trial) { return trial.measurement.outcome == Outcome::timed; }));
}

TuneTotals totals_of(const TunedSweep& sweep) {
  TuneTotals totals;
  double logs = 0, weighted_logs = 0, weights = 0;
  for (const TunedProblem& problem : sweep.problems) {
    ++totals.problems;
    totals.candidates += problem.result.trials.size();
    totals.spent_s += problem.result.spent_s;
    const std::optional<double> gain = gain_of(problem);
    if (!gain) continue;
    if (totals.tuned == 0 || *gain < totals.least_gain) {
      totals.least_gain = *gain;
      totals.least_label = problem.item.label;
    }
    if (totals.tuned == 0 || *gain > totals.most_gain) {
      totals.most_gain = *gain;
      totals.most_label = problem.item.label;
    }
    ++totals.tuned;
    const double weight = problem.item.weight;
    logs += std::log(*gain);
    weighted_logs += weight * std::log(*gain);
    weights += weight;
    totals.default_us += weight * problem.result.row.default_us;
    totals.tuned_us += weight * problem.result.row.time_us;
  }
  if (totals.tuned == 0) return totals;
  totals.mean_gain = std::exp(logs / static_cast<double>(totals.tuned));
  totals.weighted_gain = std::exp(weighted_logs / weights);
  return totals;
}

void report_problem(const TunedProblem& problem, Output& output) {
  if (!output.document.contains("problems")) {
    output.line("{:<46} {:>9} {:>9} {:>6} {:>6} {:>9} {:>9} {:>6}  {}", "problem", "default us",
                "tuned us", "ratio", "noise", "rank", "timed", "s", "winner");
  }
  print_problem(problem, output);
  output.document["problems"].push_back(problem_report_json(problem));
}

void report_sweep(const TunedSweep& sweep, Output& output) {
  const TuneTotals totals = totals_of(sweep);
  output.document["sweep"] = sweep.name;
  output.document["gpu"] = sweep.gpu;
  output.document["totals"] = totals_json(totals);
  output.document["skipped"] = Json::array();
  for (const SkippedItem& each : sweep.skipped) {
    output.line("skipped: {}: {}", one_line(each.label), one_line(each.reason));
    output.document["skipped"].push_back({{"label", each.label}, {"reason", each.reason}});
  }
  output.line("{} on {}: {} of {} problems tuned, {} skipped; {} candidates in {:.0f} s",
              one_line(sweep.name), one_line(sweep.gpu), totals.tuned, totals.problems,
              sweep.skipped.size(), totals.candidates, totals.spent_s);
  if (totals.tuned == 0) return;
  output.line("default over tuned: {:.3f} by geometric mean, {:.3f} by weight", totals.mean_gain,
              totals.weighted_gain);
  output.line("least {:.3f} ({}), most {:.3f} ({})", totals.least_gain,
              one_line(totals.least_label), totals.most_gain, one_line(totals.most_label));
  output.line("all calls, as often as their weights say: {:.1f} us by default, {:.1f} us tuned",
              totals.default_us, totals.tuned_us);
}

void show_progress(const Output& output, const std::string& name, const TuneProgress& progress) {
  const auto asked = static_cast<double>(progress.timed + progress.failed);
  const auto planned = static_cast<double>(std::max<std::size_t>(progress.planned, 1));
  const double fraction =
      std::min(1.0, std::max(progress.spent_s / progress.budget_s, asked / planned));
  const double by_budget = progress.budget_s - progress.spent_s;
  const double by_count = asked > 0 ? progress.spent_s / asked * (planned - asked) : by_budget;
  const double gain = progress.best_us > 0 ? progress.default_us / progress.best_us : 0;
  output.show(
      fraction,
      fmt::format("{}: {} timed, {} failed, best {:.2f} us, {:.2f} times the default, {:.0f} s "
                  "left",
                  name, progress.timed, progress.failed, progress.best_us, gain,
                  std::max(0.0, std::min(by_budget, by_count))));
}

void print_tuning(const std::string& name, const TuneResult& result, const Output& output) {
  const TunedRow& row = result.row;
  output.line("{}: {} of {} candidates timed, of {} plans, in {:.1f} s{}", name, row.candidates,
              result.trials.size(), result.space, result.spent_s,
              result.exhausted ? "" : " (the budget's or the count's end)");
  output.line("{:>10} {:>8} {:>10}  {}", "us", "default/", "expected", "plan");
  for (const Trial* each : finalists_of(result)) {
    const Plan& plan = each->measurement.plan;
    output.line("{:>10.2f} {:>8.3f} {:>10}  {}{}{}", each->final_us,
                row.default_us / each->final_us, ratio_text(each->expected_us), plan_name(plan),
                plan == row.plan ? "  <- winner" : "",
                plan == row.default_plan ? "  <- default" : "");
  }
  output.line(
      "{:.2f} us, {:.2f} to {:.2f}; {:.3f} times as fast as the default; differences below "
      "{:.1f} % are none",
      row.time_us, row.low_us, row.high_us, row.default_us / row.time_us, row.noise * 100);
}

}  // namespace vqgen::cli
