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
// cheapest by the cost model, corrected by what was measured, and a few at random.
enum class StrategyName { exhaustive, random, local, model };
template <>
inline constexpr auto enum_names<StrategyName> =
    std::array{"exhaustive", "random", "local", "model"};

// Where a tuning stands: for progress lines.
struct TuneProgress {
  std::size_t timed = 0;    // candidates so far
  std::size_t failed = 0;   // that were not timed
  std::size_t planned = 0;  // at most, in all
  double best_us = 0;
  double default_us = 0;
  double spent_s = 0;
  double budget_s = 0;
};

struct TuneOptions {
  StrategyName strategy = StrategyName::model;
  double budget_s = 60;    // by Evaluator::spent_s(), finals included
  std::size_t most = 0;    // candidates at most; 0: no bound
  std::uint64_t seed = 1;  // of the strategy
  int batch = 0;           // candidates asked for at once; 0: two for each core
  int rounds = 21;         // of the finals; at most, where calls are long
  int long_calls = 0;      // of one plan in a round, where calls are what tuning takes, as on
                           // a CPU: then finals are as many plans and rounds as there is room
  std::optional<Plan> incumbent;  // of an earlier table; stays the winner within the noise. Left
                                  // out where check() refuses it here
  MeasurePolicy policy;           // copied to the row
  TuneEnvironment environment;    // copied to the row
  std::vector<AccessCounts> profiles = {};  // of the codes, for the cost model; may be empty
  std::function<void(const TuneProgress&)> progress;
};

// One candidate in the order of its measuring.
struct Trial {
  Measurement measurement;
  std::optional<double> expected_us;  // by the cost model
  double at_s = 0;                    // Evaluator::spent_s() after it
  bool finalist = false;
  double final_us = 0;  // median of the finals' rounds; 0 where it was in none
};

struct TuneResult {
  TunedRow row;
  std::vector<Trial> trials;
  std::size_t space = 0;                   // feasible plans
  std::optional<std::size_t> winner_rank;  // by the cost model among the space, 0 the cheapest
  double spent_s = 0;
  bool exhausted = false;  // the strategy had no more to propose before the budget ended
};

// Default and incumbent are measured first, whatever the strategy, and are finalists whatever their
// time (race.h). Room is kept in the budget for the finals: 8 finalists times what a candidate took
// so far times (1 + rounds / 9), since screening is a compilation and some nine rounds; half of the
// budget at most. With long calls it is a quarter of the budget, and finals take what is left: as
// many of the rounds as fit, and where fewer than three do, fewer finalists; the fastest, the
// default and the incumbent have one round at least. A plan that fails in the finals is out, with
// that outcome in its trial; where all do, the next best have theirs.
//
// Where the default itself could not be timed in the finals, the row's default_us is its screening
// time, and where it has none, the winner's: no gain is claimed over what was not measured.
//
// Error(infeasible) where no kernel does the problem, Error(device) where no candidate could be
// timed, with what became of the default. Deterministic but for the evaluator's answers.
TuneResult tune(const Problem& problem, const GpuSpec& gpu, Evaluator& evaluator,
                const TuneOptions& options);

// A budget as people write it: "90", "90s", "1.5m", "2h": seconds, above 0 and at most a year.
// Error(bad_input) that names `what`.
double read_seconds(const std::string& text, const std::string& what);

}  // namespace vqgen
