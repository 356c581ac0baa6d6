#include "cli/tune_evaluator.h"

#include <algorithm>
#include <chrono>

#include "core/digest.h"
#include "core/files.h"
#include "generator/embedded_templates.h"
#include "generator/generate.h"
#include "heuristics/choose.h"
#include "runtime/tuning/replay.h"

namespace vqgen::cli {
namespace {

// A device in this process, plainly: what kills the process ends the tuning, which its journal
// then goes on with.
class InThisProcess : public Evaluator {
 public:
  InThisProcess(Backend& backend, const GpuSpec& gpu, const Problem& problem,
                const MeasureOptions& options)
      : measurer_(backend, gpu, problem, options) {}

  std::vector<Measurement> screen(std::span<const Plan> plans) override {
    return measurer_.measure({plans.begin(), plans.end()});
  }

  std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) override {
    std::vector<FinalTimes> all(plans.size());
    std::vector<std::size_t> turns(plans.size());
    for (std::size_t i = 0; i < turns.size(); ++i) turns[i] = i;
    for (int round = 0; round < rounds; ++round) {
      for (const std::size_t i : turns) {
        if (all[i].outcome != Outcome::timed) continue;
        const Measurement m = measurer_.measure({plans[i]}).front();
        all[i].outcome = m.outcome;
        all[i].why = m.why;
        if (m.outcome == Outcome::timed) all[i].us.push_back(m.time_us);
      }
      std::rotate(turns.begin(), turns.begin() + 1, turns.end());
    }
    return all;
  }

  double spent_s() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Measurer measurer_;
};

// Of the text of all kernels, as far as it does not follow from the plan.
std::string code_digest(const KernelSource& source) {
  Digest digest;
  digest.add(VQGEN_VERSION).add(source.text);
  for (const EmbeddedFile& file : embedded_templates()) digest.add(file.path).add(file.text);
  return digest.hex();
}

}  // namespace

TuneSource make_evaluator(const TimingOptions& timing, const std::string& replay,
                          const Problem& problem, const GpuSpec& gpu, Backend& backend) {
  TuneSource source;
  source.policy.codes = timing.codes == "zipf" ? "zipf:1" : timing.codes;
  source.policy.seed = timing.seed;
  source.environment.vqgen = VQGEN_VERSION;
  if (!replay.empty()) {
    source.evaluator = std::make_unique<ReplayEvaluator>(read_recording(replay, problem),
                                                         ReplayOptions{.seed = timing.seed});
    source.environment.device = source.environment.driver = source.environment.compiler = "replay";
    source.code = sha256_hex(read_file(replay));
    return source;
  }
  const KernelSource usual = generate(problem, choose(problem, gpu), gpu, backend.machine(), {});
  source.code = code_digest(usual);
  source.environment.device = backend.device() ? backend.device()->name : "CPU";
  source.environment.driver = "unknown";
  source.environment.compiler = backend.compiler(usual).name;
  if (backend.machine() == Machine::host) source.policy.timer = "cpu";
  MeasureOptions options;
  options.input = input_of(timing);
  source.evaluator = std::make_unique<InThisProcess>(backend, gpu, problem, options);
  return source;
}

}  // namespace vqgen::cli
