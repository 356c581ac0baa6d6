// Registers and copies: the levels that only pay for what lookups save by them.
#include <algorithm>

#include "core/hotness_summary.h"
#include "heuristics/placement/placer.h"

namespace vqgen {
namespace {

constexpr int kMostHeldRegisters = 64;  // of check()

}  // namespace

void Placer::hold_in_registers(std::size_t i) {
  const Known& known = operands_[i];
  if (known.profile == nullptr) return say(i, "registers: none without a hotness profile");
  const auto hot = static_cast<int>(summarise(*known.profile).total.hot_entries);
  if (!options_.registers) {
    return say(i,
               "registers: none yet; {} entries are above mean + 3 sigma, and the slack is "
               "known once the kernel is compiled",
               hot);
  }
  const int free = slack_left().registers - held_registers_;
  const std::int64_t row = known.use.row_registers();
  const std::string limits = fmt::format(
      "{} entries are above mean + 3 sigma, {} registers a thread are free beside {}, an entry "
      "takes {}",
      hot, free, registers() + held_registers_, row);
  const auto fits = static_cast<int>(
      std::min<std::int64_t>({hot, std::max(free, 0) / row, kMostHeldRegisters / row, entries(i)}));
  if (fits == 0) return say(i, "registers: none; {}", limits);
  const double share = known.accesses.share(0, fits);
  if (!hot_first_below(*known.profile, fits)) {
    return say(i, "registers: none; {}, but the codes do not name the hot ones first: {}", limits,
               kReorder);
  }
  if (share < kLeastShare) {
    return say(i,
               "registers: none; {}, and the first {} catch {:.1f} % of the accesses, less "
               "than the {:.1f} % that pay for a comparison on all",
               limits, fits, 100 * share, 100 * kLeastShare);
  }
  if (options_.strategy == Strategy::measured && !registers_pay(i, fits, limits)) return;
  placement(i).registers = fits;
  if (!check(placed_.plan, problem_, gpu_).ok) {
    placement(i).registers = 0;
    return say(i, "registers: none; {}", limits);
  }
  held_registers_ += static_cast<int>(fits * row);
  say(i, "registers: {} entries, which catch {:.1f} % of the accesses; {}", fits, 100 * share,
      limits);
}

bool Placer::registers_pay(std::size_t i, int count, const std::string& limits) {
  const Known& known = operands_[i];
  Placement held = placement(i);
  held.registers = count;
  const double saved = shared_passes(known.use, placement(i), known.accesses) -
                       shared_passes(known.use, held, known.accesses);
  constexpr double kIssued = 4;
  const double words = known.use.format.vector_size / 2.0;
  const double cost =
      known.use.lookups / 32 * static_cast<double>(known.use.units) * count * (1 + words) / kIssued;
  if (saved > cost) return true;
  say(i,
      "registers: none; {}, but to compare with {} of them takes {:.0f} cycles an SM and saves "
      "{:.0f}",
      limits, count, cost / gpu_.sms, std::max(saved, 0.0) / gpu_.sms);
  return false;
}

void Placer::copy(double below) {
  for (std::size_t i = 0; i < operands_.size(); ++i) copy(i, below);
}

void Placer::copy(std::size_t i, double below) {
  const Known& known = operands_[i];
  const Placement once = placement(i);
  if (once.shared < entries(i) || once.replicated > 0) return;
  const int copies = phase_lanes(known.use.entry_bytes());
  const double passes = shared_passes(known.use, once, known.accesses);
  std::vector<int> boundaries{entries(i)};
  for (int part = entries(i) / 2; part >= 8; part /= 2) boundaries.push_back(part);
  double best = below * passes;
  Placement chosen = once;
  double told = -1;  // passes of the chosen, or of the first that fits
  for (const int boundary : boundaries) {
    const bool whole = boundary == entries(i);
    if (!whole && (known.profile == nullptr || !hot_first_below(*known.profile, boundary))) break;
    Placement candidate = once;
    candidate.replicated = boundary;
    candidate.copies = copies;
    if (whole) candidate.shared = 0;
    if (!warps_stay(i, candidate)) continue;
    const double left = shared_passes(known.use, candidate, known.accesses);
    if (told < 0) told = left;
    // A part costs a comparison on all lookups, which passes do not count.
    if (left >= (whole ? best : std::min(best, kClearly * passes))) continue;
    best = told = left;
    chosen = candidate;
  }
  placement(i) = chosen;
  if (told < 0) {
    return say(i, "copies: none; no number of entries leaves room for the warps of an SM");
  }
  const std::string why = fmt::format("{:.0f} passes an SM instead of {:.0f} once, fills counted",
                                      told / gpu_.sms, passes / gpu_.sms);
  if (chosen == once) return say(i, "copies: none; {} of each would take {}", copies, why);
  say(i, "copies: {} of each of the first {} entries, one a lane: {}", copies, chosen.replicated,
      why);
}

bool Placer::warps_stay(std::size_t i, const Placement& candidate) const {
  Plan plan = placed_.plan;
  placement_of(plan, operands_[i].use.operand) = candidate;
  if (!check(plan, problem_, gpu_).ok) return false;
  const int warps = plan_use(plan, problem_).threads / 32;
  return resident(plan) * warps >= std::min(kWarpsWithCopies, needed_ * warps);
}

}  // namespace vqgen
