// An evaluator over a workbench in this process, without a worker.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/tuning/evaluator.h"
#include "runtime/tuning/measure/supervise.h"
#include "runtime/tuning/worker/worker_lines.h"

namespace vqgen::test {

// A fault of a launch is `crashed` if the backend goes on after it, else Error(device).
class MeasurerEvaluator final : public Evaluator {
 public:
  // Takes what MeasurerWorkbench takes.
  MeasurerEvaluator(Backend& backend, const WorkerSetup& setup)
      : backend_(backend), bench_(backend, setup) {}

  std::vector<Measurement> screen(std::span<const Plan> plans) override {
    const Stopwatch stopwatch(spent_s_);
    return supervise_screen(plans,
                            [&](const Job& job, Ledger& ledger) { return attempt(job, ledger); });
  }
  std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) override {
    const Stopwatch stopwatch(spent_s_);
    return supervise_finals(plans, rounds,
                            [&](const Job& job, Ledger& ledger) { return attempt(job, ledger); });
  }
  double spent_s() const override { return spent_s_; }

 private:
  std::optional<Death> attempt(const Job& job, Ledger& ledger) {
    try {
      do_job(bench_, job, [&](const Report& report) {
        if (!ledger.take(report)) throw Error(ErrorKind::device, "the device's clock gave no time");
      });
      return std::nullopt;
    } catch (const Error& error) {
      if (ledger.in_flight().size() != 1) throw;
      backend_.synchronize();  // throws what a lost device throws
      return Death{Outcome::crashed, error.what(), {ledger.in_flight().begin()->first}};
    }
  }

  Backend& backend_;
  MeasurerWorkbench bench_;
  double spent_s_ = 0;
};

}  // namespace vqgen::test
