#include "runtime/tuning/search/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <thread>

#include "core/error.h"
#include "core/plan/plan_name.h"
#include "runtime/quartiles.h"
#include "runtime/tuning/search/race.h"
#include "runtime/tuning/search/strategies.h"

namespace vqgen {
namespace {

constexpr double kScreeningRounds = 9;
constexpr int kFewRounds = 3;

class Tuning {
 public:
  Tuning(const Problem& problem, const GpuSpec& gpu, Evaluator& evaluator,
         const TuneOptions& options)
      : problem_(problem),
        gpu_(gpu),
        evaluator_(evaluator),
        options_(options),
        space_(tuning_space(problem, gpu, options.profiles, options.incumbent)),
        history_(space_.candidates.size()),
        trial_of_(space_.candidates.size()) {}

  TuneResult run() {
    search();
    while (true) {
      const std::vector<std::size_t> finalists = pick();
      if (finalists.empty()) break;
      if (hold_finals(finalists)) {
        result_.space = space_.feasible;
        result_.spent_s = evaluator_.spent_s();
        return std::move(result_);
      }
    }
    const Measurement& chosen = trial(space_.default_place).measurement;
    throw Error(ErrorKind::device,
                fmt::format("{}: none of {} candidates could be timed; the default is {}: {}; "
                            "see what is wrong with it by vqgen run",
                            op_name(problem_), result_.trials.size(), enum_name(chosen.outcome),
                            chosen.why));
  }

 private:
  Trial& trial(std::size_t place) { return result_.trials[*trial_of_[place]]; }
  const Candidate& candidate(std::size_t place) const { return space_.candidates[place]; }

  void search() {
    std::vector<std::size_t> first{space_.default_place};
    if (space_.incumbent && *space_.incumbent != space_.default_place) {
      first.push_back(*space_.incumbent);
    }
    screen(first);
    const auto strategy = make_strategy(options_.strategy, space_, options_.seed);
    for (std::size_t room = affordable(); room > 0; room = affordable()) {
      const std::vector<std::size_t> batch = strategy->next(history_, std::min(room, batch_size()));
      result_.exhausted = batch.empty();
      if (batch.empty()) break;
      screen(batch);
    }
  }

  std::size_t batch_size() const {
    if (options_.batch > 0) return static_cast<std::size_t>(options_.batch);
    return 2 * std::max(1u, std::thread::hardware_concurrency());
  }

  // How many candidates may be asked for in total.
  std::size_t planned() const {
    const std::size_t all = space_.candidates.size();
    return options_.most == 0 ? all : std::min(all, options_.most);
  }

  // How many more candidates the bounds allow. If all were asked, one more than there are, so that
  // the strategy ends the search.
  std::size_t affordable() const {
    const std::size_t asked = result_.trials.size();
    const bool all = asked == space_.candidates.size();
    if (!all && asked >= planned()) return 0;
    const std::size_t left = all ? 1 : planned() - asked;
    const double spent = evaluator_.spent_s();
    const double each = spent / static_cast<double>(asked);
    const double room = options_.budget_s - finals_s(each) - spent;
    if (room <= 0) return 0;
    return each > 0 ? static_cast<std::size_t>(
                          std::min(std::floor(room / each), static_cast<double>(left)))
                    : left;
  }

  // Seconds reserved for the finals if a candidate takes `each`: at most half of the budget, or
  // with long calls a quarter. Screening a candidate costs about kScreeningRounds rounds.
  double finals_s(double each) const {
    if (options_.long_calls > 0) return options_.budget_s / 4;
    const double finals =
        static_cast<double>(kFinalists) * each * (1 + options_.rounds / kScreeningRounds);
    return std::min(finals, options_.budget_s / 2);
  }

  void screen(const std::vector<std::size_t>& places) {
    std::vector<Plan> plans;
    for (const std::size_t place : places) plans.push_back(candidate(place).plan);
    const double before = evaluator_.spent_s();
    std::vector<Measurement> measured = evaluator_.screen(plans);
    const double each = (evaluator_.spent_s() - before) / static_cast<double>(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      refuse_false_times(measured[i]);
      const bool timed = measured[i].outcome == Outcome::timed;
      history_.add(places[i], timed ? std::optional(measured[i].time_us) : std::nullopt);
      trial_of_[places[i]] = result_.trials.size();
      result_.trials.push_back({std::move(measured[i]), candidate(places[i]).expected_us,
                                before + each * static_cast<double>(i + 1)});
      count(result_.trials.back());
    }
    report();
  }

  void count(const Trial& trial) {
    ++(trial.measurement.outcome == Outcome::timed ? progress_.timed : progress_.failed);
    if (trial.measurement.outcome != Outcome::timed) return;
    const double us = trial.measurement.time_us;
    if (progress_.best_us == 0 || us < progress_.best_us) progress_.best_us = us;
    if (trial.measurement.plan == candidate(space_.default_place).plan) progress_.default_us = us;
  }

  void report() {
    progress_.planned = planned();
    progress_.spent_s = evaluator_.spent_s();
    progress_.budget_s = options_.budget_s;
    if (options_.progress) options_.progress(progress_);
  }

  // How many rounds there is time for, after one call of each plan that verifies it.
  int rounds_for(const std::vector<std::size_t>& places) const {
    if (options_.long_calls == 0) return options_.rounds;
    double call_s = 0;
    for (const std::size_t place : places) call_s += *us_of(place) * 1e-6;
    const double calls = (options_.budget_s - evaluator_.spent_s()) / call_s - 1;
    const double rounds = std::floor(calls / options_.long_calls);
    return static_cast<int>(std::clamp(rounds, 1.0, static_cast<double>(options_.rounds)));
  }

  // Drops finalists that need not take part, the slowest first, until enough rounds fit.
  void leave_out(std::vector<std::size_t>& fastest_first,
                 std::span<const std::size_t> always) const {
    for (std::size_t i = fastest_first.size(); i-- > 1;) {
      if (rounds_for(fastest_first) >= std::min(kFewRounds, options_.rounds)) return;
      if (std::find(always.begin(), always.end(), fastest_first[i]) != always.end()) continue;
      fastest_first.erase(fastest_first.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  // The time from screening, if the place was timed.
  std::optional<double> us_of(std::size_t place) const {
    if (!trial_of_[place]) return std::nullopt;
    const Measurement& m = result_.trials[*trial_of_[place]].measurement;
    return m.outcome == Outcome::timed ? std::optional(m.time_us) : std::nullopt;
  }

  // Places of the finalists, ordered by name: finals must not depend on the order of measuring.
  std::vector<std::size_t> pick() const {
    std::vector<std::optional<double>> us(space_.candidates.size());
    for (std::size_t place = 0; place < us.size(); ++place) us[place] = us_of(place);
    std::vector<std::size_t> always{space_.default_place};
    if (space_.incumbent) always.push_back(*space_.incumbent);
    std::vector<std::size_t> places = pick_finalists(us, always);
    leave_out(places, always);
    std::sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
      return plan_name(candidate(a).plan) < plan_name(candidate(b).plan);
    });
    return places;
  }

  // Returns false if no finalist completed the finals.
  bool hold_finals(const std::vector<std::size_t>& places) {
    std::vector<Plan> plans;
    for (const std::size_t place : places) plans.push_back(candidate(place).plan);
    const int rounds = rounds_for(places);
    std::vector<FinalTimes> times = evaluator_.finals(plans, rounds);
    std::vector<Finalist> finalists;
    std::vector<std::size_t> in;
    for (std::size_t i = 0; i < places.size(); ++i) {
      Trial& each = trial(places[i]);
      refuse_false_times(times[i]);
      each.finalist = true;
      if (times[i].us.size() != static_cast<std::size_t>(rounds)) {
        const bool said = times[i].outcome != Outcome::timed;
        each.measurement.outcome = said ? times[i].outcome : Outcome::crashed;
        each.measurement.why = "in the finals: " + (said ? times[i].why : "rounds are missing");
        continue;
      }
      each.final_us = quartiles(times[i].us).median;
      in.push_back(places[i]);
      finalists.push_back({.name = plan_name(candidate(places[i]).plan),
                           .us = std::move(times[i].us),
                           .expected_us = candidate(places[i]).expected_us,
                           .incumbent = space_.incumbent == places[i],
                           .chosen = space_.default_place == places[i]});
    }
    if (finalists.empty()) return false;
    fill_row(in, finalists);
    result_.row.policy.rounds = rounds;
    return true;
  }

  void fill_row(const std::vector<std::size_t>& in, const std::vector<Finalist>& finalists) {
    const Decision decision = decide(finalists);
    const std::size_t winner = in[decision.winner];
    const Quartiles times = quartiles(finalists[decision.winner].us);
    const std::size_t second = in[decision.runner_up.value_or(decision.winner)];
    const Trial& chosen = trial(space_.default_place);
    const double screened_us = history_.answers.front().us.value_or(times.median);
    result_.row = {.problem = problem_,
                   .gpu = gpu_.name,
                   .policy = options_.policy,
                   .environment = options_.environment,
                   .plan = candidate(winner).plan,
                   .time_us = times.median,
                   .low_us = times.low,
                   .high_us = times.high,
                   .default_plan = candidate(space_.default_place).plan,
                   .default_us = chosen.final_us > 0 ? chosen.final_us : screened_us,
                   .runner_up = candidate(second).plan,
                   .runner_up_us = trial(second).final_us,
                   .noise = decision.noise,
                   .rel_err = trial(winner).measurement.rel_err,
                   .candidates = static_cast<int>(progress_.timed)};
    result_.winner_rank = rank_of(winner);
  }

  // The winner's rank by cost among the space's plans whose cost is known.
  std::optional<std::size_t> rank_of(std::size_t winner) const {
    if (winner >= space_.feasible || !candidate(winner).expected_us) return std::nullopt;
    std::size_t rank = 0;
    for (const std::size_t place : space_.by_cost) {
      if (place == winner) return rank;
      if (place < space_.feasible) ++rank;
    }
    return std::nullopt;
  }

  const Problem& problem_;
  const GpuSpec& gpu_;
  Evaluator& evaluator_;
  const TuneOptions& options_;
  TuningSpace space_;
  History history_;
  std::vector<std::optional<std::size_t>> trial_of_;  // by place
  TuneProgress progress_;
  TuneResult result_;
};

}  // namespace

TuneResult tune(const Problem& problem, const GpuSpec& gpu, Evaluator& evaluator,
                const TuneOptions& options) {
  return Tuning(problem, gpu, evaluator, options).run();
}

double read_seconds(const std::string& text, const std::string& what) {
  constexpr double kMost = 366.0 * 24 * 3600;
  const auto refuse = [&](const char* why) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: '{}' {}; write seconds, or 60s, 1.5m, 2h", what, text, why));
  };
  double value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, fault] = std::from_chars(text.data(), last, value, std::chars_format::fixed);
  if (fault != std::errc()) refuse("is no duration");
  const std::string unit(end, last);
  double factor = 1;
  if (unit == "m") {
    factor = 60;
  } else if (unit == "h") {
    factor = 3600;
  } else if (!unit.empty() && unit != "s") {
    refuse("is no duration");
  }
  const double seconds = value * factor;
  if (!(seconds > 0)) refuse("must be above 0");
  if (seconds > kMost) refuse("is more than a year");
  return seconds;
}

}  // namespace vqgen
