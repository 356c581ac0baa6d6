#include "cli/tune_figures.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace vqgen::cli {
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

std::vector<const Trial*> finalists_of(const TuneResult& result) {
  std::vector<const Trial*> finalists;
  for (const Trial& trial : result.trials) {
    if (trial.finalist) finalists.push_back(&trial);
  }
  std::stable_sort(finalists.begin(), finalists.end(), [](const Trial* a, const Trial* b) {
    return (a->final_us > 0) != (b->final_us > 0) ? a->final_us > 0 : a->final_us < b->final_us;
  });
  return finalists;
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

}  // namespace vqgen::cli
