#include "heuristics/tuned/diff.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace vqgen {
namespace {

std::map<std::string, TunedRow> by_key(const TunedTable& table) {
  std::map<std::string, TunedRow> rows;
  for (TunedRow& row : merge(std::span(&table, 1)).rows) {
    std::string key = tuned_key(row);
    rows.emplace(std::move(key), std::move(row));
  }
  return rows;
}

// Times of another policy are of something else, however near they are.
bool moved(const TunedRow& a, const TunedRow& b) {
  return a.policy.l2 != b.policy.l2 ||
         std::abs(a.time_us - b.time_us) >
             std::max(a.noise, b.noise) * std::min(a.time_us, b.time_us);
}

}  // namespace

TableDiff diff(const TunedTable& before, const TunedTable& after) {
  TableDiff result;
  std::map<std::string, TunedRow> later = by_key(after);
  for (auto& [key, row] : by_key(before)) {
    const auto other = later.find(key);
    if (other == later.end()) {
      result.only_before.push_back(row);
      continue;
    }
    RowChange change{row, other->second, moved(row, other->second)};
    if (!(row.plan == other->second.plan)) {
      result.winners.push_back(std::move(change));
    } else if (change.beyond_noise) {
      result.times.push_back(std::move(change));
    } else {
      ++result.same;
    }
    later.erase(other);
  }
  for (auto& [key, row] : later) result.only_after.push_back(std::move(row));
  return result;
}

}  // namespace vqgen
