#include "heuristics/placement/place.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/hotness_summary.h"
#include "heuristics/occupancy.h"
#include "heuristics/placement/conflicts.h"

namespace vqgen {
namespace {

constexpr const char* kReorder = "number them hot-first with `vqgen reorder`";
constexpr int kMostHeldRegisters = 64;  // of check()
constexpr double kClearly = 0.75;  // of the passes: a win that no small error of the model undoes

// Numbered hot-first as far as it matters: the first `boundary` entries catch nearly what the
// hottest would. Orders from other data of the same kind pass (docs/quantizing.md: 43.2 of 44.3 %).
bool hot_first_below(const HotnessProfile& profile, int boundary) {
  constexpr double kNearly = 0.9;
  return share_below(profile, boundary, Numbering::current) >=
         kNearly * share_below(profile, boundary, Numbering::hot_first);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

class Placer {
 public:
  Placer(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
         std::span<const HotnessProfile> profiles, const PlaceOptions& options)
      : problem_(problem), gpu_(gpu), options_(options), placed_{plan, {}} {
    for (const OperandUse& use : plan_use(plan, problem).operands) {
      const auto profile = std::find_if(profiles.begin(), profiles.end(), [&](const auto& each) {
        return each.operand == use.operand;
      });
      const bool counted = profile != profiles.end();
      operands_.push_back({use, counted ? &*profile : nullptr,
                           counted ? Accesses(*profile) : Accesses(vq::entries(use.format))});
      placed_.operands.push_back({use.operand, all_global(), {}});
    }
  }

  Placed run() {
    Plan bare = placed_.plan;
    for (const Known& each : operands_) placement_of(bare, each.use.operand) = all_global();
    const Verdict verdict = check(bare, problem_, gpu_);
    if (!verdict.ok) return refused(verdict);
    placed_.plan = bare;
    needed_ = resident(bare);
    if (options_.strategy == Strategy::measured || options_.spend_blocks) share_whole();
    share_by_slack();
    for (std::size_t i = 0; i < operands_.size(); ++i) hold_in_registers(i);
    if (options_.strategy == Strategy::measured) copy(1.0);
    for (OperandPlacement& each : placed_.operands) {
      each.placement = placement_of(placed_.plan, each.operand);
    }
    return std::move(placed_);
  }

  // Copies alone, onto the plan as it is.
  Placed run_copies(double below) {
    needed_ = resident(placed_.plan);
    copy(below);
    return std::move(placed_);
  }

 private:
  struct Known {
    OperandUse use;
    const HotnessProfile* profile;
    Accesses accesses;
  };

  int registers() const { return options_.registers.value_or(kAssumedRegisters); }
  Occupancy occupancy_of(const Plan& plan) const {
    const PlanUse use = plan_use(plan, problem_);
    return occupancy(gpu_, use.threads, registers(), use.shared_bytes);
  }
  // Blocks that an SM holds at once and the grid has for it.
  int resident(const Plan& plan) const {
    const std::int64_t given = ceil_div(plan_use(plan, problem_).blocks, gpu_.sms);
    return static_cast<int>(std::min<std::int64_t>(occupancy_of(plan).blocks, given));
  }
  Slack slack_left() const {
    const PlanUse use = plan_use(placed_.plan, problem_);
    return slack(gpu_, use.threads, registers(), use.shared_bytes, needed_);
  }
  Placement& placement(std::size_t i) {
    return placement_of(placed_.plan, operands_[i].use.operand);
  }
  template <class... Args>
  void say(std::size_t i, fmt::format_string<Args...> text, Args&&... args) {
    placed_.operands[i].reasons.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  int entries(std::size_t i) const { return vq::entries(operands_[i].use.format); }

  Placed refused(const Verdict& verdict) {
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      placed_.operands[i].placement = placement(i);
      say(i, "left as it was: {}", verdict.reason);
    }
    return std::move(placed_);
  }

  // The plan with these operands' codebooks wholly shared, the first choice that fits: all, then
  // each alone in order.
  void share_whole() {
    const auto all = static_cast<unsigned>((1u << operands_.size()) - 1);
    std::vector<unsigned> choices{all};
    for (unsigned one = 1; one < all; one *= 2) choices.push_back(one);
    for (const unsigned choice : choices) {
      Plan plan = placed_.plan;
      for (std::size_t i = 0; i < operands_.size(); ++i) {
        if ((choice >> i & 1u) == 0) continue;
        placement_of(plan, operands_[i].use.operand) = all_shared(entries(i));
      }
      if (!check(plan, problem_, gpu_).ok) continue;
      placed_.plan = plan;
      const int left = resident(plan);
      for (std::size_t i = 0; i < operands_.size(); ++i) {
        if ((choice >> i & 1u) == 0) continue;
        say(i, "shared: all {} entries fit a block; {} of {} resident blocks stay", entries(i),
            left, needed_);
      }
      needed_ = left;
      return;
    }
  }

  // As many entries as the slack holds, the smaller codebooks first, which take no more than their
  // share of it.
  void share_by_slack() {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      if (placement(i) == all_global()) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return operands_[a].use.row_bytes() * entries(a) < operands_[b].use.row_bytes() * entries(b);
    });
    for (std::size_t k = 0; k < order.size(); ++k) {
      share_within(order[k], slack_left().shared_bytes / static_cast<int>(order.size() - k));
    }
  }

  void share_within(std::size_t i, std::int64_t budget) {
    const Known& known = operands_[i];
    constexpr std::int64_t kAligned = 16;
    const auto fit = static_cast<int>(
        std::min<std::int64_t>(budget / kAligned * kAligned / known.use.row_bytes(), entries(i)));
    const double share = known.accesses.share(0, fit);
    if (fit == 0 || share < kLeastShare) {
      say(i,
          "shared: none; {} bytes a block hold {} entries, which catch {:.1f} % of the accesses, "
          "less than the {:.1f} % that pay for a comparison on all{}",
          budget, fit, 100 * share, 100 * kLeastShare, numbering_note(known, fit));
      return;
    }
    placement(i) = all_shared(fit);
    if (const Verdict verdict = check(placed_.plan, problem_, gpu_); !verdict.ok) {
      placement(i) = all_global();
      say(i, "shared: none; {}", verdict.reason);
      return;
    }
    say(i,
        "shared: {} of {} entries in the slack of {} bytes with {} resident blocks; they catch "
        "{:.1f} % of the accesses{}",
        fit, entries(i), budget, needed_, 100 * share, numbering_note(known, fit));
  }

  static std::string numbering_note(const Known& known, int boundary) {
    if (boundary == vq::entries(known.use.format)) return "";
    if (known.profile == nullptr) return " if all are read equally often";
    if (hot_first_below(*known.profile, boundary)) return "";
    return fmt::format(", the hottest would catch {:.1f} %: {}",
                       100 * share_below(*known.profile, boundary, Numbering::hot_first), kReorder);
  }

  // Entries above mean + 3 sigma that the register slack holds.
  void hold_in_registers(std::size_t i) {
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
    const auto fits = static_cast<int>(std::min<std::int64_t>(
        {hot, std::max(free, 0) / row, kMostHeldRegisters / row, entries(i)}));
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

  // A warp compares and selects for each entry held, 4 instructions a cycle of an SM; what it saves
  // is passes through shared memory, one a cycle.
  bool registers_pay(std::size_t i, int count, const std::string& limits) {
    const Known& known = operands_[i];
    Placement held = placement(i);
    held.registers = count;
    const double saved = shared_passes(known.use, placement(i), known.accesses) -
                         shared_passes(known.use, held, known.accesses);
    constexpr double kIssued = 4;
    const double words = known.use.format.vector_size / 2.0;
    const double cost = known.use.lookups / 32 * static_cast<double>(known.use.units) * count *
                        (1 + words) / kIssued;
    if (saved > cost) return true;
    say(i,
        "registers: none; {}, but to compare with {} of them takes {:.0f} cycles an SM and saves "
        "{:.0f}",
        limits, count, cost / gpu_.sms, std::max(saved, 0.0) / gpu_.sms);
    return false;
  }

  // Copies of whole codebooks, else of the hottest entries, where they leave fewer than `below`
  // times the passes.
  void copy(double below) {
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      const Known& known = operands_[i];
      const Placement once = placement(i);
      if (once.shared < entries(i) || once.replicated > 0) continue;
      const int copies = phase_lanes(known.use.entry_bytes());
      const double passes = shared_passes(known.use, once, known.accesses);
      std::vector<int> boundaries{entries(i)};
      for (int part = entries(i) / 2; part >= 8; part /= 2) boundaries.push_back(part);
      double best = below * passes;
      Placement chosen = once;
      std::string why = "no number of entries fits";
      for (const int boundary : boundaries) {
        const bool whole = boundary == entries(i);
        if (!whole && (known.profile == nullptr || !hot_first_below(*known.profile, boundary))) {
          break;
        }
        Placement candidate = once;
        candidate.replicated = boundary;
        candidate.copies = copies;
        if (whole) candidate.shared = 0;
        if (!warps_stay(i, candidate)) continue;
        const double left = shared_passes(known.use, candidate, known.accesses);
        if (why.starts_with("no")) {
          why = fmt::format("{:.0f} passes an SM instead of {:.0f} once, fills counted",
                            left / gpu_.sms, passes / gpu_.sms);
        }
        // A part costs a comparison on all lookups, which passes do not count.
        if (left >= (whole ? best : std::min(best, kClearly * passes))) continue;
        best = left;
        chosen = candidate;
        why = fmt::format("{:.0f} passes an SM instead of {:.0f} once, fills counted",
                          left / gpu_.sms, passes / gpu_.sms);
      }
      placement(i) = chosen;
      if (chosen == once) {
        say(i, "copies: none; {} a lane: {}", copies, why);
      } else {
        say(i, "copies: {} of each of the first {} entries, one a lane: {}", copies,
            chosen.replicated, why);
      }
    }
  }

  bool warps_stay(std::size_t i, const Placement& candidate) {
    Plan plan = placed_.plan;
    placement_of(plan, operands_[i].use.operand) = candidate;
    if (!check(plan, problem_, gpu_).ok) return false;
    const int warps = plan_use(plan, problem_).threads / 32;
    return resident(plan) * warps >= std::min(kWarpsWithCopies, needed_ * warps);
  }

  const Problem& problem_;
  const GpuSpec& gpu_;
  const PlaceOptions& options_;
  Placed placed_;
  std::vector<Known> operands_;
  int needed_ = 0;          // resident blocks that are to stay
  int held_registers_ = 0;  // a thread, by entries
};

}  // namespace

Placed place(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
             std::span<const HotnessProfile> profiles, const PlaceOptions& options) {
  return Placer(plan, problem, gpu, profiles, options).run();
}

Plan with_copies_where_they_win(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  const PlaceOptions options;
  return Placer(plan, problem, gpu, {}, options).run_copies(kClearly).plan;
}

}  // namespace vqgen
