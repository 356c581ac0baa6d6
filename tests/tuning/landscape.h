// Synthetic landscapes, from a seed: times of a whole space with the errors that the cost model
// makes, by kind of plan, by fields and a little by plan. The evaluator for tests counts, and can
// be made to fail.
#pragma once

#include <functional>
#include <set>

#include "core/profiles.h"
#include "heuristics/choose.h"
#include "runtime/tuning/journal/replay.h"
#include "runtime/tuning/search/strategies.h"
#include "runtime/tuning/search/tune.h"
#include "runtime/verify/random.h"
#include "tests/tuning/noisy_replay.h"

namespace vqgen::test {

inline Problem gemv_problem(const std::string& format = "aqlm-2x8",
                            LinearShape shape = {1, 1024, 1024}) {
  Gemv op;
  op.shape = shape;
  op.weights = find_format(format, "test");
  return op;
}

inline Problem attention_problem(const std::string& format = "cq-4c8b",
                                 AttentionShape shape = {1, 32, 8, 128, 4096}) {
  AttentionDecode op;
  op.shape = shape;
  op.keys = find_format(format, "test");
  op.values = for_values(op.keys);
  return op;
}

struct Landscape {
  Problem problem;
  GpuSpec gpu;
  TuningSpace space;
  std::vector<Measurement> recorded;  // by place

  double us(const Plan& plan) const {
    for (const Measurement& each : recorded) {
      if (each.plan == plan) return each.time_us;
    }
    return 0;
  }
  double best_us() const {
    double best = recorded.front().time_us;
    for (const Measurement& each : recorded) best = std::min(best, each.time_us);
    return best;
  }
};

// Each kind is 30 % off, each field's value 8 %, each plan 2 %, as relative standard deviations.
inline Landscape landscape(const Problem& problem, std::uint64_t seed) {
  Landscape result{problem, find_gpu("h200"), {}, {}};
  result.space = tuning_space(problem, result.gpu, {}, std::nullopt);
  const auto draw = [&](const std::string& text) {
    return Random(seed, std::hash<std::string>()(text)).normal();
  };
  for (const Candidate& each : result.space.candidates) {
    double log = 0.3 * draw(each.kind) + 0.02 * draw(plan_name(each.plan));
    std::string field;
    for (const auto& axis : plan_axes(each.plan)) {
      log += 0.08 * draw(field + std::to_string(axis[0]));
      field += '/';
    }
    Measurement m;
    m.plan = each.plan;
    m.time_us = m.low_us = m.high_us = each.guess_us * std::exp(log);
    m.rel_err = 1e-4;
    result.recorded.push_back(std::move(m));
  }
  return result;
}

// Counts what it forwards; `spoil` may change answers.
class Counting : public Evaluator {
 public:
  explicit Counting(Evaluator& inner) : inner_(inner) {}
  std::vector<Measurement> screen(std::span<const Plan> plans) override {
    for (const Plan& plan : plans) names.push_back(plan_name(plan));
    std::vector<Measurement> answers = inner_.screen(plans);
    for (Measurement& each : answers) {
      if (spoil) spoil(each);
    }
    return answers;
  }
  std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) override {
    ++finals_held;
    std::vector<FinalTimes> all = inner_.finals(plans, rounds);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (spoil_final) spoil_final(plans[i], all[i]);
    }
    return all;
  }
  double spent_s() const override { return inner_.spent_s(); }

  std::vector<std::string> names;  // of screened plans
  int finals_held = 0;
  std::function<void(Measurement&)> spoil;
  std::function<void(const Plan&, FinalTimes&)> spoil_final;

 private:
  Evaluator& inner_;
};

inline TuneOptions options_of(StrategyName strategy, std::size_t most) {
  TuneOptions options;
  options.strategy = strategy;
  options.budget_s = 1e9;
  options.most = most;
  options.batch = 16;
  return options;
}

}  // namespace vqgen::test
