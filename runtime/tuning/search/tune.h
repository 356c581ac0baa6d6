// Tuning of one problem: a strategy proposes candidates of the space until its budget is spent, a
// race screens them, and finals with the default and the incumbent decide.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/access/access_counts.h"
#include "core/gpu/gpu_spec.h"
#include "core/plan/tuned_row.h"
#include "runtime/tuning/evaluator.h"

namespace vqgen {

// exhaustive: the whole space, in the order of the cost model. random: drawn without replacement.
// local: from the best known, to plans that differ in one axis, restarting elsewhere. model: the
// cheapest by the cost model, corrected by measurements, and a few at random.
enum class StrategyName { exhaustive, random, local, model };
template <>
inline constexpr auto enum_names<StrategyName> =
    std::array{"exhaustive", "random", "local", "model"};

// The state of a tuning, for progress lines.
struct TuneProgress {
  std::size_t timed = 0;    // candidates so far
  std::size_t failed = 0;   // candidates that failed
  std::size_t planned = 0;  // most candidates in total
  double best_us = 0;
  double default_us = 0;
  double spent_s = 0;
  double budget_s = 0;
};

struct TuneOptions {
  StrategyName strategy = StrategyName::model;
  double budget_s = 60;           // by Evaluator::spent_s(), with finals
  std::size_t most = 0;           // most candidates; 0: no bound
  std::uint64_t seed = 1;         // seed of the strategy
  int batch = 0;                  // candidates asked for at once; 0: two per core
  int rounds = 21;                // rounds of the finals; fewer if calls are long
  int long_calls = 0;             // calls of a plan per round if calls dominate tuning, as on
                                  // a CPU: finals then have as many plans and rounds as fit
  std::optional<Plan> incumbent;  // from an earlier table; wins within the noise, and is left
                                  // out if check() refuses it here
  MeasurePolicy policy;           // copied to the row
  TuneEnvironment environment;    // copied to the row
  std::vector<AccessCounts> profiles = {};  // for the cost model; may be empty
  std::function<void(const TuneProgress&)> progress;
};

// One candidate, in the order of measuring.
struct Trial {
  Measurement measurement;
  std::optional<double> expected_us;  // by the cost model
  double at_s = 0;                    // Evaluator::spent_s() after it
  bool finalist = false;
  double final_us = 0;  // median of the finals' rounds; 0 if it was in none
};

struct TuneResult {
  TunedRow row;
  std::vector<Trial> trials;
  std::size_t space = 0;                   // feasible plans
  std::optional<std::size_t> winner_rank;  // winner's rank by cost among the space, 0 the cheapest
  double spent_s = 0;
  bool exhausted = false;  // the strategy had nothing left to propose before the budget ended
};

// Measures the default and the incumbent first; both are finalists whatever their time (race.h). If
// the finals did not time the default, default_us is its screening time, else the winner's time.
// Throws Error(infeasible) without a kernel, Error(device) if no candidate could be timed.
TuneResult tune(const Problem& problem, const GpuSpec& gpu, Evaluator& evaluator,
                const TuneOptions& options);

// Reads a budget: "90", "90s", "1.5m", "2h": seconds, above 0 and at most a year. Error(bad_input)
// names `what`.
double read_seconds(const std::string& text, const std::string& what);

}  // namespace vqgen
