// A recorded landscape that answers as a device would: for tests, and to try strategies on what was
// measured once. Noise is a function of seed, plan, round and batch, so that an answer depends
// neither on what was asked before nor on who else is in the finals.
#pragma once

#include <cstdint>
#include <filesystem>
#include <unordered_map>

#include "runtime/tuning/evaluator.h"

namespace vqgen {

struct ReplayOptions {
  std::uint64_t seed = 1;  // of the noise
  double sigma = 0;        // of a plan in a round, relative
  double drift = 0;        // of a round, all plans of it alike, relative
  double batch = 0;        // of a plan in a batch of the finals, on top of that of all, relative
  double process = 0;      // likewise, as long as it answers
  double candidate_s = 0;  // that screening one takes
  double round_s = 0;      // that a round of finals takes, for each plan
};

class ReplayEvaluator : public Evaluator {
 public:
  // Of equal plans the last counts. What is recorded as hung, crashed or wrong is that again.
  ReplayEvaluator(std::vector<Measurement> recorded, const ReplayOptions& options);

  // A plan that was not recorded is compile_failed, "not recorded".
  std::vector<Measurement> screen(std::span<const Plan> plans) override;
  std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) override;
  double spent_s() const override { return spent_s_; }

 private:
  const Measurement& answer(const std::string& name, const Plan& plan);
  double noise(const std::string& name, int round, int batch) const;

  std::unordered_map<std::string, Measurement> recorded_;  // by plan_name()
  ReplayOptions options_;
  double spent_s_ = 0;
};

// The measurements of a problem in a file: of `vqgen measure --space 0 --json`, or an array of
// {"plan": NAME, "time_us": US} and {"plan": NAME, "outcome": "hung", "why": TEXT}.
// Error(bad_input) that names file and place where it is neither, or holds nothing of the problem.
std::vector<Measurement> read_recording(const std::filesystem::path& path, const Problem& problem);

// How codebooks were when the file was recorded: warm where it does not say. Error(bad_input).
CodebookCaching recorded_codebooks(const std::filesystem::path& path);

}  // namespace vqgen
