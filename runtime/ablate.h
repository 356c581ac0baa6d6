// The search of `vqgen dev ablate`: the best measured plan of each row within a budget of plans. What
// is found for one row is tried for the others: the shapes of winners are measured under every
// row's restriction, so that no row is beaten by tuning alone.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "heuristics/ablation/rows.h"
#include "runtime/measure.h"

namespace vqgen {

// Measures plans, in their order; Measurer::measure() or a test's own.
using MeasurePlans = std::function<std::vector<Measurement>(const std::vector<Plan>&)>;

struct AblatedRow {
  std::size_t plans = 0;            // measured that obey the row, whichever row asked for them
  std::optional<std::size_t> best;  // of Ablation::measurements, the fastest that was timed
  std::string why;                  // where there is none
};

struct Ablation {
  std::vector<Measurement> measurements;  // each plan once, in the order of measuring
  std::vector<AblatedRow> rows;           // as AblationSpace::rows()

  const Measurement* best(std::size_t row) const {
    return rows[row].best ? &measurements[*rows[row].best] : nullptr;
  }
  // The time of row `a` as a part of that of row `b`; nullopt where one has none.
  std::optional<double> ratio(std::size_t a, std::size_t b) const;
};

// A quarter of the budget goes to plans spread over each row, up to a quarter to those that the
// cost model expects to be each row's fastest (AblationSpace::expected()); the rest, in rounds, to
// the shapes of the winners under each row, and to the shapes nearest to each row's best. Never
// measures more than `budget` plans, none twice. Pure but for `measure`.
Ablation ablate(const AblationSpace& space, std::size_t budget, const MeasurePlans& measure);

}  // namespace vqgen
