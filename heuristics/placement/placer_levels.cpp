// Registers and copies: the levels that only pay for what lookups save by them.
#include <algorithm>

#include "core/hotness/hotness_summary.h"
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
  const double words = known.use.entry_bytes() / 4.0;
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
  const double passes = shared_passes(known.use, once, known.accesses);
  double best = below * passes;
  Placement chosen = once;
  double told = -1;  // passes of the chosen, or of the first that fits
  int told_copies = 0;
  for (const Placement& candidate : copied(i, once)) {
    const bool whole = candidate.shared == 0;
    if (whole && chosen != once) continue;  // fewer copies spare no more
    if (!warps_stay(i, candidate)) continue;
    const double left = shared_passes(known.use, candidate, known.accesses);
    if (told < 0) told = left, told_copies = candidate.copies;
    // A part costs a comparison on all lookups, which passes do not count.
    if (left >= (whole ? best : std::min(best, kClearly * passes))) continue;
    best = told = left;
    told_copies = candidate.copies;
    chosen = candidate;
  }
  placement(i) = chosen;
  if (told < 0) {
    return say(i, "copies: none; no number of entries leaves room for the warps of an SM");
  }
  const std::string why = fmt::format("{:.0f} passes an SM instead of {:.0f} once, fills counted",
                                      told / gpu_.sms, passes / gpu_.sms);
  if (chosen == once) return say(i, "copies: none; {} of each would take {}", told_copies, why);
  const bool one_a_lane = told_copies == phase_lanes(known.use.entry_bytes());
  say(i, "copies: {} of each of the first {} entries, {}: {}", told_copies, chosen.replicated,
      one_a_lane ? "one a lane" : "fewer than lanes meet", why);
}

// The whole codebook with a copy for each lane that is served at once, or with fewer; then the
// hottest entries, where codes name them first, with as many.
std::vector<Placement> Placer::copied(std::size_t i, const Placement& once) const {
  const Known& known = operands_[i];
  const int lanes = phase_lanes(known.use.entry_bytes());
  std::vector<Placement> candidates;
  for (int copies = lanes; copies > 1; copies /= 2) {
    candidates.push_back({once.registers, entries(i), copies, 0});
  }
  for (int part = entries(i) / 2; part >= 8; part /= 2) {
    if (known.profile == nullptr || !hot_first_below(*known.profile, part)) break;
    candidates.push_back({once.registers, part, lanes, once.shared});
  }
  return candidates;
}

bool Placer::warps_stay(std::size_t i, const Placement& candidate) const {
  Plan plan = placed_.plan;
  *placement_of(plan, operands_[i].use.operand) = candidate;
  if (!check(plan, problem_, gpu_).ok) return false;
  const int warps = plan_use(plan, problem_).threads / 32;
  return resident(plan) * warps >= std::min(kWarpsWithCopies, needed_ * warps);
}

}  // namespace vqgen
