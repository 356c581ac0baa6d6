// The worker's side: a process that does jobs for the tuner that started it, and the workbench that
// it does them on.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "runtime/tuning/worker/worker_lines.h"

namespace vqgen {

inline constexpr int kScreenReplays = 3;  // finals decide; a race needs less

// Candidates on a device of this process: Measurer behind the seam of Workbench.
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

// Makes the workbench of a setup; Error where that cannot be.
using MakeWorkbench = std::function<std::unique_ptr<Workbench>(const WorkerSetup& setup)>;

// Serves standard input and output, both of which it takes over: what else is printed goes to
// standard error. Returns the exit code: 0 when the tuner closes, at an Error its own after telling
// it, since a device that failed once is not to be trusted. The process ends at once when the tuner
// goes away, whatever the workbench does at the time.
int serve_worker(const MakeWorkbench& make);

}  // namespace vqgen
