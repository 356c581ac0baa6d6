// A recorded landscape that answers as a device would, without noise and in no time: to try
// strategies on what was measured once.
#pragma once

#include <filesystem>
#include <unordered_map>

#include "runtime/tuning/evaluator.h"

namespace vqgen {

class ReplayEvaluator : public Evaluator {
 public:
  // Of equal plans the last counts. What is recorded as hung, crashed or wrong is that again.
  explicit ReplayEvaluator(std::vector<Measurement> recorded);

  // A plan that was not recorded is compile_failed, "not recorded".
  std::vector<Measurement> screen(std::span<const Plan> plans) override;
  std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) override;
  double spent_s() const override { return 0; }

 private:
  const Measurement& answer(const Plan& plan);

  std::unordered_map<std::string, Measurement> recorded_;  // by plan_name()
};

// The measurements of a problem in a file: of `vqgen dev space --sample 0 --json`, or an array of
// {"plan": NAME, "time_us": US} and {"plan": NAME, "outcome": "hung", "why": TEXT}.
// Error(bad_input) that names file and place where it is neither, or holds nothing of the problem.
std::vector<Measurement> read_recording(const std::filesystem::path& path, const Problem& problem);

// How codebooks were when the file was recorded: warm where it does not say. Error(bad_input).
CodebookCaching recorded_codebooks(const std::filesystem::path& path);

}  // namespace vqgen
