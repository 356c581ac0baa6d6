#include "cli/tune_report.h"

#include "heuristics/space.h"
#include "runtime/tuning/journal/journal_lines.h"

namespace vqgen::cli {
namespace {

Json trial_json(const Trial& trial) {
  Json json = to_json(trial.measurement);
  json["expected_us"] = trial.expected_us ? Json(*trial.expected_us) : Json(nullptr);
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
    const std::optional<double> gain = gain_of(problem);
    json["row"] = to_json(result.row);
    json["gain"] = gain ? Json(*gain) : Json(nullptr);
    json["winner_rank"] = result.winner_rank ? Json(*result.winner_rank) : Json(nullptr);
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
  const std::optional<double> gain = gain_of(problem);
  output.line(
      "{:<46} {:>9.2f} {:>9.2f} {:>6} {:>5.1f}% {:>9} {:>9} {:>6.0f}  {}", label,
      result.row.default_us, result.row.time_us, gain ? fmt::format("{:.3f}", *gain) : "-",
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

}  // namespace

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

}  // namespace vqgen::cli
