#include "runtime/tuning/measure/supervise.h"

#include <algorithm>
#include <mutex>
#include <numeric>

namespace vqgen {
namespace {

// The plans at these places; `serial` says whether to compile them one by one.
Job job_of(JobKind kind, std::span<const Plan> plans, const std::vector<std::size_t>& places,
           bool serial) {
  Job job{.kind = kind, .plans = {}, .serial = serial};
  for (const std::size_t place : places) job.plans.push_back(plans[place]);
  return job;
}

std::vector<std::size_t> every_place(std::span<const Plan> plans) {
  std::vector<std::size_t> places(plans.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  return places;
}

bool sure(const Death& death) {
  return death.outcome == Outcome::hung || death.suspects.size() == 1;
}

bool guilty(const std::optional<Death>& death, std::size_t i) {
  return death && sure(*death) &&
         std::find(death->suspects.begin(), death->suspects.end(), i) != death->suspects.end();
}

}  // namespace

void do_job(Workbench& bench, const Job& job, const std::function<void(const Report&)>& report) {
  std::mutex mutex;
  const auto one_at_a_time = [&](Step step) {
    return [&, step](std::size_t candidate) {
      const std::lock_guard lock(mutex);
      report({step, candidate});
    };
  };
  bench.compile(job.plans, job.serial,
                {one_at_a_time(Step::compiling), one_at_a_time(Step::compiled)});
  std::vector<std::size_t> seated;
  for (std::size_t i = 0; i < job.plans.size(); ++i) {
    report({Step::running, i});
    const Measurement measured = job.kind == JobKind::screen ? bench.screen(i) : bench.seat(i);
    report({Step::measured, i, measured});
    if (measured.outcome == Outcome::timed) seated.push_back(i);
  }
  if (job.kind == JobKind::screen || seated.empty()) return;
  const int all = job.first_round + job.rounds;
  for (int round = job.first_round; round < all; ++round) {
    if (round > job.first_round && batch_of(round, all) != batch_of(round - 1, all)) {
      bench.move_data();
    }
    for (std::size_t turn = 0; turn < seated.size(); ++turn) {
      const std::size_t i = seated[(static_cast<std::size_t>(round) + turn) % seated.size()];
      report({Step::running, i});
      const double us = bench.round_us(i);
      report({.step = Step::timed, .candidate = i, .us = us});
    }
  }
}

bool Ledger::fits(const Report& report) const {
  const std::size_t i = report.candidate;
  if (i >= candidates_.size()) return false;
  const State& state = candidates_[i];
  const auto flight = in_flight_.find(i);
  const bool runs = flight != in_flight_.end() && flight->second.step == Step::running;
  const bool seated = state.measured && state.measured->outcome == Outcome::timed;
  const auto rounds = static_cast<std::size_t>(std::max(job_.rounds, 0));
  switch (report.step) {
    case Step::compiling:
      return !state.begun;
    case Step::compiled:
      return flight != in_flight_.end() && !runs;
    case Step::running:
      return flight == in_flight_.end() && !running_ &&
             (!state.measured || (job_.kind == JobKind::finals && seated));
    case Step::measured:
      return runs && !state.measured &&
             (job_.kind == JobKind::finals || report.measurement.outcome != Outcome::timed ||
              is_time(report.measurement.time_us));
    case Step::timed:
      return runs && seated && state.us.size() < rounds && is_time(report.us);
  }
  return false;
}

bool Ledger::take(const Report& report) {
  if (!fits(report)) return false;
  const std::size_t i = report.candidate;
  State& state = candidates_[i];
  if (report.step == Step::compiling || report.step == Step::running) {
    in_flight_[i] = {report.step, Clock::now()};
  } else {
    in_flight_.erase(i);
  }
  if (report.step == Step::compiling) state.begun = true;
  if (report.step == Step::running) running_ = true;
  if (report.step == Step::measured) state.measured = report.measurement;
  if (report.step == Step::timed) state.us.push_back(report.us);
  if (report.step == Step::measured || report.step == Step::timed) running_ = false;
  return true;
}

bool Ledger::whole() const {
  return std::all_of(candidates_.begin(), candidates_.end(), [&](const State& state) {
    if (!state.measured) return false;
    if (job_.kind == JobKind::screen || state.measured->outcome != Outcome::timed) return true;
    return state.us.size() == static_cast<std::size_t>(std::max(job_.rounds, 0));
  });
}

std::vector<Measurement> supervise_screen(std::span<const Plan> plans, const Attempt& attempt) {
  std::vector<Measurement> results(plans.size());
  std::vector<std::size_t> left = every_place(plans);
  bool serial = false;
  while (!left.empty()) {
    const Job job = job_of(JobKind::screen, plans, left, serial);
    Ledger ledger(job);
    const std::optional<Death> death = attempt(job, ledger);
    std::vector<std::size_t> again;
    for (std::size_t i = 0; i < left.size(); ++i) {
      Measurement& result = results[left[i]];
      if (ledger.measured(i)) {
        result = *ledger.measured(i);
      } else if (guilty(death, i)) {
        result.outcome = death->outcome;
        result.why = death->why;
      } else {
        again.push_back(left[i]);
      }
      result.plan = plans[left[i]];
    }
    left = std::move(again);
    serial = serial || (death && !sure(*death) && !death->suspects.empty());
  }
  return results;
}

std::vector<FinalTimes> supervise_finals(std::span<const Plan> plans, int rounds,
                                         const Attempt& attempt) {
  std::vector<FinalTimes> results(plans.size());
  std::vector<std::size_t> left = every_place(plans);
  bool serial = false;
  for (int done = 0; done < rounds && !left.empty();) {
    Job job = job_of(JobKind::finals, plans, left, serial);
    job.first_round = done;
    job.rounds = rounds - done;
    Ledger ledger(job);
    const std::optional<Death> death = attempt(job, ledger);
    std::vector<std::size_t> stay;  // places in the job
    auto full = static_cast<std::size_t>(job.rounds);
    for (std::size_t i = 0; i < left.size(); ++i) {
      FinalTimes& result = results[left[i]];
      const std::optional<Measurement>& measured = ledger.measured(i);
      if (measured && measured->outcome != Outcome::timed) {
        result.outcome = measured->outcome;
        result.why = measured->why;
      } else if (guilty(death, i)) {
        result.outcome = death->outcome;
        result.why = death->why;
        result.us.insert(result.us.end(), ledger.us(i).begin(), ledger.us(i).end());
      } else {
        stay.push_back(i);
        full = std::min(full, ledger.us(i).size());
      }
    }
    std::vector<std::size_t> next;
    for (const std::size_t i : stay) {
      const auto first = ledger.us(i).begin();
      std::vector<double>& us = results[left[i]].us;
      us.insert(us.end(), first, first + static_cast<std::ptrdiff_t>(full));
      next.push_back(left[i]);
    }
    done += static_cast<int>(full);
    left = std::move(next);
    serial = serial || (death && !sure(*death) && !death->suspects.empty());
  }
  return results;
}

}  // namespace vqgen
