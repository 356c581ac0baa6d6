#include "core/format/e8p.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace vqgen {
namespace {

using Odds = std::array<int, kE8pVectorSize>;  // twice the elements

// Appends the vectors of 1, 3 and 5 that begin with the first `set` of `odds` and satisfy
// `wanted`, in lexicographic order.
template <class Wanted>
void enumerate(Odds odds, std::size_t set, const Wanted& wanted, std::vector<Odds>& out) {
  if (set == odds.size()) {
    if (wanted(odds)) out.push_back(odds);
    return;
  }
  for (const int odd : {1, 3, 5}) {
    odds[set] = odd;
    enumerate(odds, set + 1, wanted, out);
  }
}

int norm_of(const Odds& odds) {  // four times the squared norm
  int sum = 0;
  for (const int odd : odds) sum += odd * odd;
  return sum;
}

}  // namespace

std::vector<float> e8p_table() {
  std::vector<Odds> chosen;
  enumerate(
      {}, 0, [](const Odds& odds) { return norm_of(odds) <= 4 * 10; }, chosen);
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const Odds& a, const Odds& b) { return norm_of(a) < norm_of(b); });
  enumerate(
      {}, 0,
      [](const Odds& odds) {
        return std::count(odds.begin(), odds.end(), 3) == 5 &&
               std::count(odds.begin(), odds.end(), 1) == 3;
      },
      chosen);
  chosen.resize(kE8pEntries);
  std::vector<float> table;
  for (const Odds& odds : chosen) {
    for (const int odd : odds) table.push_back(static_cast<float>(odd) / 2);
  }
  return table;
}

bool is_e8p_element(float value) {
  return value >= 0.5f && value <= 3.5f && std::floor(value) + 0.5f == value;
}

}  // namespace vqgen
