// Candidates on a device of this process: the workbench that a worker serves, and an evaluator over
// it without a worker, for the host backend and for devices that nobody else needs.
#pragma once

#include <memory>

#include "runtime/tuning/evaluator.h"
#include "runtime/tuning/supervise.h"
#include "runtime/tuning/workbench.h"
#include "runtime/tuning/worker_lines.h"

namespace vqgen {

inline constexpr int kScreenReplays = 3;  // finals decide; a race needs less

// Measurer behind the seam of Workbench.
class MeasurerWorkbench final : public Workbench {
 public:
  // `backend` is the one that the setup names, or like it. Error(bad_input) for codes that cannot
  // be read, and as Measurer.
  MeasurerWorkbench(Backend& backend, const WorkerSetup& setup);

  void compile(std::span<const Plan> plans, bool serial, const CompileWatch& watch) override;
  Measurement screen(std::size_t candidate) override;
  Measurement seat(std::size_t candidate) override;
  void move_data() override { measurer_.move_data(); }
  double round_us(std::size_t candidate) override;

 private:
  Measurer measurer_;
  // On a host, where a compilation is longer than a round, what was compiled stays for the finals.
  bool keeps_;
  std::vector<CompiledPlan> candidates_;
  std::map<std::string, CompiledPlan> kept_;  // by plan_name()
};

// A fault of a launch is `crashed` as long as the backend goes on after it, else Error(device).
class MeasurerEvaluator final : public Evaluator {
 public:
  // As MeasurerWorkbench.
  MeasurerEvaluator(Backend& backend, const WorkerSetup& setup);

  std::vector<Measurement> screen(std::span<const Plan> plans) override;
  std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) override;
  // Of the calls, and of making the data and the reference.
  double spent_s() const override { return spent_s_; }

 private:
  std::optional<Death> attempt(const Job& job, Ledger& ledger);

  Backend& backend_;
  double spent_s_ = 0;
  std::unique_ptr<MeasurerWorkbench> bench_;
};

}  // namespace vqgen
