// The search of `vqgen dev ablate`: the best measured plan of each row within a budget of plans.
// What is found for one row is tried for the others: the shapes of winners are measured under every
// row's restriction, so that no row is beaten by tuning alone.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "heuristics/papers/ablation/rows.h"
#include "runtime/measure.h"

namespace vqgen {

// Measures plans, in their order; Measurer::measure() or a test's own.
using MeasurePlans = std::function<std::vector<Measurement>(const std::vector<Plan>&)>;

struct AblatedRow {
  std::size_t plans = 0;            // measured plans that obey the row, whichever row asked
  std::optional<std::size_t> best;  // index into Ablation::measurements of the fastest timed plan
  std::string why;                  // time of the best, if the row has one
};

struct Ablation {
  std::vector<Measurement> measurements;  // each plan once, in the order of measuring
  std::vector<AblatedRow> rows;           // as AblationSpace::rows()

  const Measurement* best(std::size_t row) const {
    return rows[row].best ? &measurements[*rows[row].best] : nullptr;
  }
  // The time of row `a` divided by that of row `b`; nullopt if either row has none.
  std::optional<double> ratio(std::size_t a, std::size_t b) const;
};

// Spends a quarter of the budget on plans spread over each row and up to a quarter on those that
// the cost model favours (AblationSpace::expected()); the rest, in rounds, on winners' shapes and
// their neighbours. Measures at most `budget` plans, none twice. Pure except for `measure`.
Ablation ablate(const AblationSpace& space, std::size_t budget, const MeasurePlans& measure);

}  // namespace vqgen
