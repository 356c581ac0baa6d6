#include "heuristics/placement/place.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "core/hotness/hotness_summary.h"
#include "heuristics/placement/placer.h"

namespace vqgen {
namespace {

std::string numbering_note(const HotnessProfile* profile, int entries, int boundary) {
  if (boundary == entries) return "";
  if (profile == nullptr) return " if all are read equally often";
  if (hot_first_below(*profile, boundary)) return "";
  return fmt::format(", the hottest would catch {:.1f} %: {}",
                     100 * share_below(*profile, boundary, Numbering::hot_first), kReorder);
}

}  // namespace

bool hot_first_below(const HotnessProfile& profile, int boundary) {
  constexpr double kNearly = 0.9;
  return share_below(profile, boundary, Numbering::current) >=
         kNearly * share_below(profile, boundary, Numbering::hot_first);
}

Placer::Placer(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
               std::span<const HotnessProfile> profiles, const PlaceOptions& options)
    : problem_(problem), gpu_(gpu), options_(options), placed_{plan, {}} {
  for (const OperandUse& use : plan_use(plan, problem).operands) {
    if (placement_of(plan, use.operand) == nullptr) continue;  // the dataflow says where they stand
    const auto profile = std::find_if(profiles.begin(), profiles.end(), [&](const auto& each) {
      return each.operand == use.operand;
    });
    const bool counted = profile != profiles.end();
    operands_.push_back({use, counted ? &*profile : nullptr,
                         counted ? Accesses(*profile) : Accesses(vq::entries(use.format))});
    placed_.operands.push_back({use.operand, all_global(), {}});
  }
}

Placed Placer::run() {
  if (operands_.empty()) return std::move(placed_);
  Plan bare = placed_.plan;
  for (const Known& each : operands_) *placement_of(bare, each.use.operand) = all_global();
  const Verdict verdict = check(bare, problem_, gpu_);
  if (!verdict.ok) return refused(verdict);
  placed_.plan = bare;
  needed_ = resident(bare);
  if (options_.strategy == Strategy::measured || options_.spend_blocks) share_whole();
  share_by_slack();
  for (std::size_t i = 0; i < operands_.size(); ++i) hold_in_registers(i);
  if (options_.strategy == Strategy::measured) copy(1.0);
  for (OperandPlacement& each : placed_.operands) {
    each.placement = *placement_of(placed_.plan, each.operand);
  }
  return std::move(placed_);
}

Placed Placer::run_copies(double below) {
  needed_ = resident(placed_.plan);
  copy(below);
  return std::move(placed_);
}

int Placer::resident(const Plan& plan) const {
  const PlanUse use = plan_use(plan, problem_);
  const int held = occupancy(gpu_, use.threads, registers(), use.shared_bytes).blocks;
  return static_cast<int>(std::min<std::int64_t>(held, ceil_div(use.blocks, gpu_.sms)));
}

Slack Placer::slack_left() const {
  const PlanUse use = plan_use(placed_.plan, problem_);
  return slack(gpu_, use.threads, registers(), use.shared_bytes, needed_);
}

Placed Placer::refused(const Verdict& verdict) {
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    placed_.operands[i].placement = placement(i);
    say(i, "left as it was: {}", verdict.reason);
  }
  return std::move(placed_);
}

void Placer::share_whole() {
  const auto all = static_cast<unsigned>((1u << operands_.size()) - 1);
  std::vector<unsigned> choices{all};
  for (unsigned one = 1; one < all; one *= 2) choices.push_back(one);
  for (const unsigned choice : choices) {
    Plan plan = placed_.plan;
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      if ((choice >> i & 1u) == 0) continue;
      *placement_of(plan, operands_[i].use.operand) = all_shared(entries(i));
    }
    if (!check(plan, problem_, gpu_).ok) continue;
    placed_.plan = plan;
    const int left = resident(plan);
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      if ((choice >> i & 1u) == 0) continue;
      say(i, "shared: all {} entries fit a block; {} of {} resident blocks stay", entries(i), left,
          needed_);
    }
    needed_ = left;
    return;
  }
}

void Placer::share_by_slack() {
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

void Placer::share_within(std::size_t i, std::int64_t budget) {
  const Known& known = operands_[i];
  constexpr std::int64_t kAligned = 16;
  const auto fit = static_cast<int>(
      std::min<std::int64_t>(budget / kAligned * kAligned / known.use.row_bytes(), entries(i)));
  const double share = known.accesses.share(0, fit);
  if (fit == 0 || share < kLeastShare) {
    say(i,
        "shared: none; {} bytes a block hold {} entries, which catch {:.1f} % of the accesses, "
        "less than the {:.1f} % that pay for a comparison on all{}",
        budget, fit, 100 * share, 100 * kLeastShare,
        numbering_note(known.profile, entries(i), fit));
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
      fit, entries(i), budget, needed_, 100 * share,
      numbering_note(known.profile, entries(i), fit));
}

Placed place(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
             std::span<const HotnessProfile> profiles, const PlaceOptions& options) {
  return Placer(plan, problem, gpu, profiles, options).run();
}

Plan with_copies_where_they_win(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                                double below) {
  const PlaceOptions options;
  return Placer(plan, problem, gpu, {}, options).run_copies(below).plan;
}

}  // namespace vqgen
