#include "heuristics/placement/conflicts.h"

#include <algorithm>
#include <array>
#include <random>

#include "heuristics/placement/even_draws.h"

namespace vqgen {
namespace {

double unit_interval(std::uint64_t random) { return static_cast<double>(random >> 11) * 0x1p-53; }

// The first place of the ascending shares that is above `at`.
std::size_t place_of(std::span<const double> shares, double at) {
  const auto found = std::upper_bound(shares.begin(), shares.end(), at);
  return static_cast<std::size_t>(std::min(found, shares.end() - 1) - shares.begin());
}

// The entries, as rows of the tables, that one phase wants of each slot.
class Phase {
 public:
  explicit Phase(int slots) : slots_(slots) {}

  void want(int slot, std::int64_t row) {
    auto& wanted = wanted_[static_cast<std::size_t>(slot)];
    int& count = counts_[static_cast<std::size_t>(slot)];
    if (std::find(wanted.begin(), wanted.begin() + count, row) != wanted.begin() + count) return;
    wanted[static_cast<std::size_t>(count++)] = row;
    passes_ = std::max(passes_, count);
  }
  // The passes that it takes; ready for the next one.
  int finish() {
    std::fill_n(counts_.begin(), slots_, 0);
    return std::exchange(passes_, 0);
  }

 private:
  static constexpr std::size_t kMost = 32;
  int slots_;
  int passes_ = 0;
  std::array<int, kMost> counts_{};
  std::array<std::array<std::int64_t, kMost>, kMost> wanted_{};
};

}  // namespace

Accesses::Accesses(int entries) : entries_(entries) {}

Accesses::Accesses(const HotnessProfile& profile) : entries_(profile.entries) {
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

double conflict_factor(const SharedTable& table, const Accesses& accesses, int phases) {
  if (table.range.begin >= table.range.end) return 0;
  const int lanes = phase_lanes(table.entry_bytes);
  const int count = table.range.end - table.range.begin;
  if (count == accesses.entries() && table.copies >= lanes) return 1;  // a slot for each lane
  if (accesses.even()) return expected_passes(table, accesses.entries());
  std::mt19937_64 random(1);
  Phase phase(lanes);
  std::int64_t passes = 0;
  for (int i = 0; i < phases; ++i) {
    std::size_t codebook = accesses.codebook(random());
    std::int64_t unit = 0;
    for (int lane = 0; lane < lanes; ++lane) {
      if (table.lane_units > 1) {
        unit = static_cast<std::int64_t>(random() % static_cast<unsigned>(table.lane_units));
        codebook = accesses.codebook(random());
      }
      const int entry = accesses.entry(codebook, random());
      if (entry < table.range.begin || entry >= table.range.end) continue;
      const std::int64_t row = unit * count + entry - table.range.begin;
      const std::int64_t place = row * table.residuals * table.copies + (lane & (table.copies - 1));
      phase.want(static_cast<int>(place & (lanes - 1)), row);
    }
    passes += phase.finish();
  }
  return static_cast<double>(passes) / phases;
}

double shared_passes(const OperandUse& use, const Placement& placement, const Accesses& accesses) {
  vq::FormatConfig format = use.format;
  format.placement = {placement.registers, placement.replicated, placement.copies,
                      placement.shared};
  const vq::EntryRange replicated = vq::replicated_range(format);
  const vq::EntryRange once = vq::shared_range(format);
  SharedTable table{.entry_bytes = use.entry_bytes(), .residuals = format.residuals};
  table.lane_units = use.lane_units;
  table.range = once;
  double passes = conflict_factor(table, accesses, kPlacementPhases);
  table.range = replicated;
  table.copies = placement.copies;
  passes += conflict_factor(table, accesses, kPlacementPhases);
  const double slots = phase_lanes(use.entry_bytes());
  const double places =
      static_cast<double>(use.units) * format.residuals *
      ((replicated.end - replicated.begin) * placement.copies + (once.end - once.begin));
  return (use.lookups * passes + use.fills * places) / slots;
}

}  // namespace vqgen
