// Two tuned tables against each other, by key.
#pragma once

#include <vector>

#include "heuristics/tuned/table.h"

namespace vqgen {

struct RowChange {
  TunedRow before;
  TunedRow after;
  bool beyond_noise = false;  // of the two, relative to the faster; or cold otherwise
};

struct TableDiff {
  std::vector<TunedRow> only_before;
  std::vector<TunedRow> only_after;
  std::vector<RowChange> winners;  // another plan
  std::vector<RowChange> times;    // the same plan, beyond the noise
  std::size_t same = 0;
  bool empty() const {
    return only_before.empty() && only_after.empty() && winners.empty() && times.empty();
  }
};

// Sorted by key; of a key that stands twice in a table its best row.
TableDiff diff(const TunedTable& before, const TunedTable& after);

}  // namespace vqgen
