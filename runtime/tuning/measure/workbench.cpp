#include "runtime/tuning/measure/workbench.h"

#include <mutex>

#include "runtime/tuning/evaluator.h"

namespace vqgen {

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

}  // namespace vqgen
