#include "heuristics/placement/conflicts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

namespace vqgen {
namespace {

double unit_interval(std::uint64_t random) { return static_cast<double>(random >> 11) * 0x1p-53; }

// The first place of the ascending shares that is above `at`.
std::size_t place_of(std::span<const double> shares, double at) {
  const auto found = std::upper_bound(shares.begin(), shares.end(), at);
  return static_cast<std::size_t>(std::min(found, shares.end() - 1) - shares.begin());
}

// A lane's request: an entry, as a row of the tables, in a slot.
using Want = std::pair<int, std::int64_t>;

// The passes that a phase takes: the different entries that it wants of one slot, at most.
int passes_of(std::span<Want> wanted) {
  std::sort(wanted.begin(), wanted.end());
  int most = 0;
  int entries = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (i > 0 && wanted[i] == wanted[i - 1]) continue;
    entries = i > 0 && wanted[i].first == wanted[i - 1].first ? entries + 1 : 1;
    most = std::max(most, entries);
  }
  return most;
}

// Lanes that read one copy contend for its slots. The numbers of ways in which k of them want at
// most m of a slot's r rows have the exponential generating function
//   g(x) = sum over j <= m of C(r, j) (e^x - 1)^j
//
// lanes whose entry stands elsewhere have e^(x times such entries), and all slots together the
// product (Flajolet, Sedgewick, Analytic Combinatorics, II.3). x is taken in units of 1 / entries,
// so that coefficients are probabilities over k!.
using Series = std::array<double, 33>;  // coefficients of powers of x, to that of all lanes

// e^(count x / all)
Series exponential(double count, double all) {
  Series result{1};
  for (std::size_t k = 1; k < result.size(); ++k) {
    result[k] = result[k - 1] * count / all / static_cast<double>(k);
  }
  return result;
}

Series times(const Series& a, const Series& b, std::size_t lanes) {
  Series result{};
  for (std::size_t i = 0; i <= lanes; ++i) {
    for (std::size_t j = 0; i + j <= lanes; ++j) result[i + j] += a[i] * b[j];
  }
  return result;
}

Series raised(Series base, std::int64_t exponent, std::size_t lanes) {
  Series result{1};
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result = times(result, base, lanes);
    if (exponent > 1) base = times(base, base, lanes);
  }
  return result;
}

void add_choices(Series& to, const Series& from, std::int64_t total, int count) {
  double ways = 1;
  for (int i = 0; i < count; ++i) ways *= static_cast<double>(total - i) / (i + 1);
  for (std::size_t k = 0; k < to.size(); ++k) to[k] += ways * from[k];
}

// Expected passes of a phase whose lanes each want any of `entries` entries of any of the table's
// units, all as often: the expectation itself, without draws.
double expected_passes(const SharedTable& table, int entries) {
  const int phase = phase_lanes(table.entry_bytes);
  // Copies beyond the lanes of a phase are read by none of them.
  const int copies = std::min(table.copies, phase);
  const int lanes = phase / copies;  // that read one copy
  const auto last = static_cast<std::size_t>(lanes);
  const std::int64_t units = std::max(table.lane_units, 1);
  const std::int64_t rows = units * (table.range.end - table.range.begin);
  const std::int64_t slots = lanes / std::gcd(lanes, table.num_codebooks);
  const auto all = static_cast<double>(units * entries);
  const std::int64_t fewer = rows / slots;  // rows of a slot; `fuller` slots have one more
  const std::int64_t fuller = rows % slots;
  const Series elsewhere = exponential(all - static_cast<double>(rows), all);
  Series wanted = exponential(1, all);
  wanted[0] = 0;
  double expected = 0;
  Series power{1};  // (e^x - 1)^m
  Series of_more{}, of_fewer{};
  for (int most = 0; most < lanes; ++most) {
    add_choices(of_more, power, fewer + 1, most);
    add_choices(of_fewer, power, fewer, most);
    const Series of_slots =
        times(raised(of_more, fuller, last), raised(of_fewer, slots - fuller, last), last);
    double probability = times(elsewhere, of_slots, last)[last];
    for (int i = 2; i <= lanes; ++i) probability *= i;
    const double above = 1 - std::pow(std::min(probability, 1.0), copies);
    expected += above;
    if (above < 1e-9) break;
    power = times(power, wanted, last);
  }
  return expected;
}

}  // namespace

Accesses::Accesses(int entries) : entries_(entries) {}

Accesses::Accesses(const AccessCounts& profile) : entries_(profile.entries) {
  double all = 0;
  for (std::size_t i = 0; i < profile.codebooks(); ++i) {
    const auto counts = profile.codebook(i);
    double sum = 0;
    for (const std::int64_t count : counts) {
      sum += static_cast<double>(count);
      cumulative_.push_back(sum);
    }
    for (auto at = cumulative_.end() - entries_; at != cumulative_.end(); ++at) {
      *at /= std::max(sum, 1.0);
    }
    all += sum;
    codebooks_.push_back(all);
  }
  for (double& share : codebooks_) share /= std::max(all, 1.0);
  if (all == 0) codebooks_.clear();
}

double Accesses::share(int begin, int end) const {
  if (begin >= end) return 0;
  if (codebooks_.empty()) return static_cast<double>(end - begin) / entries_;
  double sum = 0;
  double before = 0;
  for (std::size_t i = 0; i < codebooks_.size(); ++i) {
    const double* within = cumulative_.data() + i * static_cast<std::size_t>(entries_);
    const double below = begin == 0 ? 0 : within[begin - 1];
    sum += (codebooks_[i] - before) * (within[end - 1] - below);
    before = codebooks_[i];
  }
  return sum;
}

std::size_t Accesses::codebook(std::uint64_t random) const {
  return place_of(codebooks_, unit_interval(random));
}

int Accesses::entry(std::size_t codebook, std::uint64_t random) const {
  const auto size = static_cast<std::size_t>(entries_);
  return static_cast<int>(
      place_of(std::span(cumulative_).subspan(codebook * size, size), unit_interval(random)));
}

const AccessCounts* profile_of(std::span<const AccessCounts> profiles, Operand operand) {
  const auto found = std::find_if(profiles.begin(), profiles.end(),
                                  [&](const auto& each) { return each.operand == operand; });
  return found == profiles.end() ? nullptr : &*found;
}

Accesses accesses_of(std::span<const AccessCounts> profiles, const OperandUse& use) {
  const AccessCounts* profile = profile_of(profiles, use.operand);
  return profile == nullptr ? Accesses(vq::entries(use.format)) : Accesses(*profile);
}

double conflict_factor(const SharedTable& table, const Accesses& accesses, int phases) {
  if (table.range.begin >= table.range.end) return 0;
  const int lanes = phase_lanes(table.entry_bytes);
  const int count = table.range.end - table.range.begin;
  if (count == accesses.entries() && table.copies >= lanes) return 1;  // a slot for each lane
  if (accesses.even()) return expected_passes(table, accesses.entries());
  std::mt19937_64 random(1);
  std::array<Want, 32> wanted;
  std::int64_t passes = 0;
  for (int i = 0; i < phases; ++i) {
    std::size_t codebook = accesses.codebook(random());
    std::int64_t unit = 0;
    std::size_t count_wanted = 0;
    for (int lane = 0; lane < lanes; ++lane) {
      if (table.lane_units > 1) {
        unit = static_cast<std::int64_t>(random() % static_cast<unsigned>(table.lane_units));
        codebook = accesses.codebook(random());
      }
      const int entry = accesses.entry(codebook, random());
      if (entry < table.range.begin || entry >= table.range.end) continue;
      const std::int64_t row = unit * count + entry - table.range.begin;
      const std::int64_t place =
          row * table.num_codebooks * table.copies + (lane & (table.copies - 1));
      wanted[count_wanted++] = {static_cast<int>(place & (lanes - 1)), row};
    }
    passes += passes_of(std::span(wanted).first(count_wanted));
  }
  return static_cast<double>(passes) / phases;
}

double conflict_factor(const OperandUse& use, const Accesses& accesses, int phases) {
  SharedTable table{.entry_bytes = use.entry_bytes(), .num_codebooks = use.format.num_codebooks};
  table.lane_units = use.lane_units;
  table.range = vq::shared_range(use.format);
  const double once = conflict_factor(table, accesses, phases);
  table.range = vq::replicated_range(use.format);
  table.copies = use.format.placement.copies;
  return once + conflict_factor(table, accesses, phases);
}

double shared_passes(OperandUse use, const Placement& placement, const Accesses& accesses) {
  use.format.placement = placement;
  const double passes = conflict_factor(use, accesses, kPlacementPhases);
  return (use.lookups * passes + use.fills * use.places()) / phase_lanes(use.entry_bytes());
}

}  // namespace vqgen
