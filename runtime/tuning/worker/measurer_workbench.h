// The workbench that a worker serves: candidates on a device of this process.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/tuning/measure/workbench.h"
#include "runtime/tuning/worker/worker_lines.h"

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

}  // namespace vqgen
