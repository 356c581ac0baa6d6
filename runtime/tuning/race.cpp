#include "runtime/tuning/race.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

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

// Of the least median against the mean of its round; of equal ones the first by name.
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

double noise_of(std::span<const Finalist> finalists, std::size_t fastest) {
  std::vector<double> deviations;
  const auto add = [&](const std::vector<double>& logs) {
    if (logs.empty()) return;
    const double middle = median(logs);
    for (const double each : logs) deviations.push_back(std::abs(each - middle));
  };
  const std::vector<double>& own = finalists[fastest].us;
  if (finalists.size() == 1) {
    add(paired({own.begin() + 1, own.end()}, {own.begin(), own.end() - 1}));
  }
  for (std::size_t i = 0; i < finalists.size(); ++i) {
    if (i != fastest) add(paired(finalists[i].us, own));
  }
  if (deviations.empty()) return kLeastNoise;
  const double sigma = 1.4826 * median(deviations);
  const double noise = 3 * 1.2533 * sigma / std::sqrt(static_cast<double>(own.size()));
  return std::clamp(noise, kLeastNoise, 1.0);
}

}  // namespace

void refuse_false_times(Measurement& measurement) {
  Measurement& m = measurement;
  if (m.outcome != Outcome::timed) return;
  const bool sound = is_time(m.time_us) && is_time(m.low_us) && is_time(m.high_us) &&
                     std::isfinite(m.rel_err) && m.rel_err >= 0;
  if (sound) return;
  m.why =
      fmt::format("timed at {} us with rel_err {}, which no measurement is", m.time_us, m.rel_err);
  m.outcome = Outcome::wrong;
  m.time_us = m.low_us = m.high_us = m.rel_err = 0;
}

void refuse_false_times(FinalTimes& times) {
  if (std::all_of(times.us.begin(), times.us.end(), is_time)) return;
  times.us.clear();
  if (times.outcome != Outcome::timed) return;
  times.outcome = Outcome::wrong;
  times.why = "a round of the finals took no time or no number";
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
  decision.noise = noise_of(finalists, fastest);
  for (const Finalist& each : finalists) {
    decision.behind.push_back(std::expm1(median(paired(each.us, finalists[fastest].us))));
  }
  const auto rank = [&](std::size_t i) {
    const Finalist& each = finalists[i];
    return std::tuple(!(decision.behind[i] <= decision.noise), !each.incumbent, !each.chosen,
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
