// A recorded landscape that answers like a device, without noise and in no time: to try strategies
// on past measurements.
#pragma once

#include <filesystem>
#include <unordered_map>

#include "runtime/tuning/evaluator.h"

namespace vqgen {

class ReplayEvaluator : public Evaluator {
 public:
  // If plans are equal, the last one counts. A recorded outcome of hung, crashed or wrong is
  // repeated.
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
// Error(bad_input) names file and place if it is neither, or has nothing of the problem.
std::vector<Measurement> read_recording(const std::filesystem::path& path, const Problem& problem);

// How codebooks were cached when the file was recorded; warm if it does not say. Throws
// Error(bad_input).
CodebookCaching recorded_codebooks(const std::filesystem::path& path);

}  // namespace vqgen
