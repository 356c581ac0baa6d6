#include "runtime/tuning/search/race.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/plan/row_bounds.h"
#include "runtime/quartiles.h"

namespace vqgen {
namespace {

constexpr double kNear = 1.10;

double median(std::vector<double> values) { return quartiles(std::move(values)).median; }

std::vector<double> paired(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> logs;
  for (std::size_t r = 0; r < a.size(); ++r) logs.push_back(std::log(a[r] / b[r]));
  return logs;
}

// The finalist with the least median against the mean of its round; on ties the first by name.
std::size_t fastest_of(std::span<const Finalist> finalists) {
  std::size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  std::vector<std::size_t> by_name(finalists.size());
  std::iota(by_name.begin(), by_name.end(), std::size_t{0});
  std::sort(by_name.begin(), by_name.end(),
            [&](std::size_t a, std::size_t b) { return finalists[a].name < finalists[b].name; });
  std::vector<double> level(finalists.front().us.size(), 1);  // geometric mean of each round
  for (const std::size_t i : by_name) {
    for (std::size_t r = 0; r < level.size(); ++r) {
      level[r] *= std::pow(finalists[i].us[r], 1.0 / static_cast<double>(finalists.size()));
    }
  }
  for (const std::size_t i : by_name) {
    const double score = median(paired(finalists[i].us, level));
    if (score < least) {
      least = score;
      best = i;
    }
  }
  return best;
}

constexpr double kOfMedian = 1.2533;       // its standard error over a mean's
constexpr double kOfDifferences = 1.0483;  // a normal x's deviation over the median of |x - y|
constexpr double kDeviations = 2.5;

// Adds |x - y| of all pairs.
void add_differences(std::span<const double> values, std::vector<double>& to) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) to.push_back(std::abs(values[i] - values[j]));
  }
}

double deviation(const std::vector<double>& differences) {
  return differences.empty() ? 0 : kOfDifferences * median(differences);
}

// V of race.h, from logarithms, one per round.
double run_variance(std::span<const std::vector<double>> all) {
  if (all.empty()) return 0;
  const auto rounds = static_cast<int>(all.front().size());
  std::vector<double> within;
  std::vector<double> between;
  for (const std::vector<double>& logs : all) {
    std::vector<double> medians;
    for (int begin = 0, end = 0; begin < rounds; begin = end) {
      while (end < rounds && batch_of(end, rounds) == batch_of(begin, rounds)) ++end;
      const std::span batch(logs.begin() + begin, logs.begin() + end);
      add_differences(batch, within);
      medians.push_back(median({batch.begin(), batch.end()}));
    }
    add_differences(medians, between);
  }
  const double batches = final_batches(rounds);
  const double round = std::pow(kOfMedian * deviation(within), 2);  // of one, as a median counts it
  const double batch = std::pow(deviation(between), 2) - round * batches / rounds;
  return round / rounds + std::max(0.0, batch) * (1 + kOfMedian * kOfMedian / batches);
}

double band_of(double variance, double least) {
  return std::clamp(kDeviations * std::sqrt(variance), least, 1.0);
}

void set_noise(Decision& decision, std::span<const Finalist> finalists, std::size_t fastest) {
  std::vector<std::vector<double>> pairs;
  std::vector<std::vector<double>> own;
  for (std::size_t i = 0; i < finalists.size(); ++i) {
    if (i != fastest) pairs.push_back(paired(finalists[i].us, finalists[fastest].us));
    own.push_back(paired(finalists[i].us, std::vector<double>(finalists[i].us.size(), 1.0)));
  }
  decision.band = band_of(run_variance(pairs), kLeastNoise);
  decision.noise = band_of(2 * run_variance(own), decision.band);
}

// True if a tuned row can hold the time; NaN fails.
bool fits_row(double us) { return us >= kShortestUs && us <= kLongestUs; }

}  // namespace

void refuse_false_times(Measurement& measurement) {
  Measurement& m = measurement;
  if (m.outcome != Outcome::timed) return;
  const bool sound = fits_row(m.time_us) && fits_row(m.low_us) && fits_row(m.high_us) &&
                     m.rel_err >= 0 && m.rel_err <= kMostRelErr;
  if (sound) return;
  m.why =
      fmt::format("timed at {} us with rel_err {}, which no measurement is", m.time_us, m.rel_err);
  m.outcome = Outcome::wrong;
  m.time_us = m.low_us = m.high_us = m.rel_err = 0;
}

void refuse_false_times(FinalTimes& times) {
  if (std::all_of(times.us.begin(), times.us.end(), fits_row)) return;
  times.us.clear();
  if (times.outcome != Outcome::timed) return;
  times.outcome = Outcome::wrong;
  times.why = "a round of the finals took no time that a device takes";
}

std::vector<std::size_t> pick_finalists(std::span<const std::optional<double>> us,
                                        std::span<const std::size_t> always) {
  std::vector<std::size_t> picked;
  for (std::size_t i = 0; i < us.size(); ++i) {
    if (us[i]) picked.push_back(i);
  }
  const auto forced = [&](std::size_t i) {
    return std::find(always.begin(), always.end(), i) != always.end();
  };
  std::stable_sort(picked.begin(), picked.end(),
                   [&](std::size_t a, std::size_t b) { return *us[a] < *us[b]; });
  if (picked.empty()) return picked;
  const double limit = *us[picked.front()] * kNear;
  std::size_t room = kFinalists - std::min(kFinalists, static_cast<std::size_t>(std::count_if(
                                                           picked.begin(), picked.end(), forced)));
  std::erase_if(picked, [&](std::size_t i) {
    if (forced(i)) return false;
    if (room == 0 || *us[i] > limit) return true;
    --room;
    return false;
  });
  return picked;
}

Decision decide(std::span<const Finalist> finalists) {
  const std::size_t fastest = fastest_of(finalists);
  Decision decision;
  set_noise(decision, finalists, fastest);
  for (const Finalist& each : finalists) {
    decision.behind.push_back(std::expm1(median(paired(each.us, finalists[fastest].us))));
  }
  const auto rank = [&](std::size_t i) {
    const Finalist& each = finalists[i];
    return std::tuple(!(decision.behind[i] <= decision.band), !each.incumbent, !each.chosen,
                      each.expected_us.value_or(std::numeric_limits<double>::infinity()),
                      std::string_view(each.name));
  };
  decision.winner = fastest;
  for (std::size_t i = 0; i < finalists.size(); ++i) {
    if (rank(i) < rank(decision.winner)) decision.winner = i;
  }
  const auto time = [&](std::size_t i) {
    return std::pair(decision.behind[i], std::string_view(finalists[i].name));
  };
  for (std::size_t i = 0; i < finalists.size(); ++i) {
    if (i == decision.winner) continue;
    if (!decision.runner_up || time(i) < time(*decision.runner_up)) decision.runner_up = i;
  }
  return decision;
}

}  // namespace vqgen
