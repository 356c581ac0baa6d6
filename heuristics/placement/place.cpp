// The levels one after the other: shared memory first, then registers or copies.
#include "heuristics/placement/place.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/access/access_counts_summary.h"
#include "core/ceil_div.h"
#include "heuristics/occupancy.h"
#include "heuristics/placement/conflicts.h"

namespace vqgen {
namespace {

constexpr const char* kReorder = "number them hot-first with `vqgen reorder`";
constexpr int kMostHeldRegisters = 64;  // limit of check()

// Numbered hot-first as far as it matters: the first `boundary` entries catch nearly what the
// hottest would. Orders from other data of the same kind pass (docs/guides/quantize.md: 43.2
// of 44.3 %).
bool hot_first_below(const AccessCounts& profile, int boundary) {
  constexpr double kNearly = 0.9;
  return share_below(profile, boundary, Numbering::current) >=
         kNearly * share_below(profile, boundary, Numbering::hot_first);
}

std::string numbering_note(const AccessCounts* profile, int entries, int boundary) {
  if (boundary == entries) return "";
  if (profile == nullptr) return " if all are read equally often";
  if (hot_first_below(*profile, boundary)) return "";
  return fmt::format(", the hottest would catch {:.1f} %: {}",
                     100 * share_below(*profile, boundary, Numbering::hot_first), kReorder);
}

// Holds references to what it is made of.
class Placer {
 public:
  Placer(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
         std::span<const AccessCounts> profiles, const PlaceOptions& options)
      : problem_(problem), gpu_(gpu), options_(options), plan_(plan) {
    for (const OperandUse& use : plan_use(plan, problem).operands) {
      if (placement_of(plan, use.operand) == nullptr) continue;  // the dataflow places them
      operands_.push_back({{use.operand, all_global(), {}},
                           use,
                           profile_of(profiles, use.operand),
                           accesses_of(profiles, use)});
    }
  }

  Placed run() {
    Plan bare = plan_;
    for (const Known& each : operands_) *placement_of(bare, each.operand) = all_global();
    const Verdict verdict = check(bare, problem_, gpu_);
    if (verdict.ok && !operands_.empty()) {
      plan_ = bare;
      needed_ = resident(bare);
      const bool measured = options_.strategy == Strategy::measured;
      if (measured) share_whole();
      share_by_slack();
      if (measured) {
        copy(1.0);
      } else {
        for (Known& each : operands_) hold_in_registers(each);
      }
    }
    Placed placed{plan_, {}};
    for (Known& each : operands_) {
      if (!verdict.ok) say(each, "left as it was: {}", verdict.reason);
      each.placement = placement(each);
      placed.operands.push_back(std::move(each));
    }
    return placed;
  }

  // The plan with copies alone, onto what it is.
  Plan with_copies(double below) {
    needed_ = resident(plan_);
    copy(below);
    return plan_;
  }

 private:
  struct Known : OperandPlacement {
    OperandUse use;
    const AccessCounts* profile;
    Accesses accesses;
  };

  // The plan with these operands' codebooks wholly shared, the first choice that fits: all, then
  // each alone in order.
  void share_whole() {
    std::vector<std::vector<Known*>> choices(1);
    for (Known& each : operands_) choices.front().push_back(&each);
    if (operands_.size() > 1) {
      for (Known& each : operands_) choices.push_back({&each});
    }
    for (const std::vector<Known*>& choice : choices) {
      Plan plan = plan_;
      for (const Known* each : choice) {
        *placement_of(plan, each->operand) = all_shared(entries(*each));
      }
      if (!check(plan, problem_, gpu_).ok) continue;
      plan_ = plan;
      const int left = resident(plan);
      for (Known* each : choice) {
        say(*each, "shared: all {} entries fit a block; {} of {} resident blocks stay",
            entries(*each), left, needed_);
      }
      needed_ = left;
      return;
    }
  }

  // Gives each codebook as many entries as the slack holds, smaller codebooks first, which take no
  // more than their share.
  void share_by_slack() {
    std::vector<Known*> order;
    for (Known& each : operands_) {
      if (placement(each) == all_global()) order.push_back(&each);
    }
    std::ranges::stable_sort(
        order, {}, [](const Known* each) { return each->use.row_bytes() * entries(*each); });
    for (std::size_t k = 0; k < order.size(); ++k) {
      share_within(*order[k], slack_left().shared_bytes / static_cast<int>(order.size() - k));
    }
  }

  void share_within(Known& known, std::int64_t budget) {
    constexpr std::int64_t kAligned = 16;
    const auto fit = static_cast<int>(std::min<std::int64_t>(
        budget / kAligned * kAligned / known.use.row_bytes(), entries(known)));
    const double share = known.accesses.share(0, fit);
    if (fit == 0 || share < kLeastShare) {
      say(known,
          "shared: none; {} bytes per block hold {} entries, which catch {:.1f} % of the accesses, "
          "less than the {:.1f} % that pay for a comparison on all{}",
          budget, fit, 100 * share, 100 * kLeastShare,
          numbering_note(known.profile, entries(known), fit));
      return;
    }
    placement(known) = all_shared(fit);
    if (const Verdict verdict = check(plan_, problem_, gpu_); !verdict.ok) {
      placement(known) = all_global();
      say(known, "shared: none; {}", verdict.reason);
      return;
    }
    say(known,
        "shared: {} of {} entries in the slack of {} bytes with {} resident blocks; they catch "
        "{:.1f} % of the accesses{}",
        fit, entries(known), budget, needed_, 100 * share,
        numbering_note(known.profile, entries(known), fit));
  }

  // Entries above mean + 3 sigma that the register slack holds.
  void hold_in_registers(Known& known) {
    if (known.profile == nullptr) return say(known, "registers: none without access counts");
    const auto hot = static_cast<int>(summarise(*known.profile).hot_entries);
    if (!options_.registers) {
      return say(known,
                 "registers: none yet; {} entries are above mean + 3 sigma, and the slack is "
                 "known once the kernel is compiled",
                 hot);
    }
    const int free = slack_left().registers - held_registers_;
    const std::int64_t row = known.use.row_registers();
    const std::string limits = fmt::format(
        "{} entries are above mean + 3 sigma, {} registers per thread are free beside {}, an entry "
        "takes {}",
        hot, free, registers() + held_registers_, row);
    const auto fits = static_cast<int>(std::min<std::int64_t>(
        {hot, std::max(free, 0) / row, kMostHeldRegisters / row, entries(known)}));
    if (fits == 0) return say(known, "registers: none; {}", limits);
    const double share = known.accesses.share(0, fits);
    if (!hot_first_below(*known.profile, fits)) {
      return say(known, "registers: none; {}, but the codes do not name the hot ones first: {}",
                 limits, kReorder);
    }
    if (share < kLeastShare) {
      return say(known,
                 "registers: none; {}, and the first {} catch {:.1f} % of the accesses, less "
                 "than the {:.1f} % that pay for a comparison on all",
                 limits, fits, 100 * share, 100 * kLeastShare);
    }
    placement(known).registers = fits;
    if (!check(plan_, problem_, gpu_).ok) {
      placement(known).registers = 0;
      return say(known, "registers: none; {}", limits);
    }
    held_registers_ += static_cast<int>(fits * row);
    say(known, "registers: {} entries, which catch {:.1f} % of the accesses; {}", fits, 100 * share,
        limits);
  }

  void copy(double below) {
    for (Known& each : operands_) copy(each, below);
  }

  // Copies of whole codebooks, as many as lanes meet or fewer, else of the hottest entries, where
  // they leave fewer than `below` times the passes.
  void copy(Known& known, double below) {
    const Placement once = placement(known);
    if (once.shared < entries(known) || once.replicated > 0) return;
    const double passes = shared_passes(known.use, once, known.accesses);
    double best = below * passes;
    Placement chosen = once;
    double told = -1;  // passes of the chosen, or of the first that fits
    int told_copies = 0;
    for (const Placement& candidate : copied(known, once)) {
      const bool whole = candidate.shared == 0;
      if (whole && chosen != once) continue;  // fewer copies spare no more
      if (!warps_stay(known, candidate)) continue;
      const double left = shared_passes(known.use, candidate, known.accesses);
      if (told < 0) told = left, told_copies = candidate.copies;
      // A part costs a comparison on all lookups, which passes do not count.
      if (left >= (whole ? best : std::min(best, kClearly * passes))) continue;
      best = told = left;
      told_copies = candidate.copies;
      chosen = candidate;
    }
    placement(known) = chosen;
    if (told < 0) {
      return say(known, "copies: none; no number of entries leaves room for the warps of an SM");
    }
    const std::string why = fmt::format("{:.0f} passes an SM instead of {:.0f} once, fills counted",
                                        told / gpu_.sms, passes / gpu_.sms);
    if (chosen == once)
      return say(known, "copies: none; {} of each would take {}", told_copies, why);
    const bool one_a_lane = told_copies == phase_lanes(known.use.entry_bytes());
    say(known, "copies: {} of each of the first {} entries, {}: {}", told_copies, chosen.replicated,
        one_a_lane ? "one a lane" : "fewer than lanes meet", why);
  }

  // The whole codebook with a copy for each lane that is served at once, or with fewer; then the
  // hottest entries, where codes name them first, with as many.
  static std::vector<Placement> copied(const Known& known, const Placement& once) {
    const int lanes = phase_lanes(known.use.entry_bytes());
    std::vector<Placement> candidates;
    for (int copies = lanes; copies > 1; copies /= 2) {
      candidates.push_back({once.registers, entries(known), copies, 0});
    }
    for (int part = entries(known) / 2; part >= 8; part /= 2) {
      if (known.profile == nullptr || !hot_first_below(*known.profile, part)) break;
      candidates.push_back({once.registers, part, lanes, once.shared});
    }
    return candidates;
  }

  bool warps_stay(const Known& known, const Placement& candidate) const {
    Plan plan = plan_;
    *placement_of(plan, known.operand) = candidate;
    if (!check(plan, problem_, gpu_).ok) return false;
    const int warps = plan_use(plan, problem_).threads / 32;
    return resident(plan) * warps >= std::min(kWarpsWithCopies, needed_ * warps);
  }

  // Blocks that an SM holds at once and the grid has for it.
  int resident(const Plan& plan) const {
    const PlanUse use = plan_use(plan, problem_);
    const int held = occupancy(gpu_, use.threads, registers(), use.shared_bytes).blocks;
    return static_cast<int>(std::min<std::int64_t>(held, ceil_div(use.blocks, gpu_.sms)));
  }

  Slack slack_left() const {
    const PlanUse use = plan_use(plan_, problem_);
    return slack(gpu_, use.threads, registers(), use.shared_bytes, needed_);
  }
  int registers() const { return options_.registers.value_or(kAssumedRegisters); }
  Placement& placement(const Known& known) { return *placement_of(plan_, known.operand); }
  static int entries(const Known& known) { return vq::entries(known.use.format); }
  template <class... Args>
  static void say(Known& known, fmt::format_string<Args...> text, Args&&... args) {
    known.reasons.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  const Problem& problem_;
  const GpuSpec& gpu_;
  const PlaceOptions& options_;
  Plan plan_;
  std::vector<Known> operands_;
  int needed_ = 0;          // resident blocks that are to stay
  int held_registers_ = 0;  // per thread, for entries
};

}  // namespace

Placed place(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
             std::span<const AccessCounts> profiles, const PlaceOptions& options) {
  return Placer(plan, problem, gpu, profiles, options).run();
}

Plan with_copies_where_they_win(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                                double below) {
  const PlaceOptions options;
  return Placer(plan, problem, gpu, {}, options).with_copies(below);
}

}  // namespace vqgen
