#include "heuristics/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "heuristics/kernels/slice.h"
#include "heuristics/papers/papers.h"

namespace vqgen {
namespace {

template <HasFields T>
void append_fields(std::vector<int>& to, const T& value) {
  for_each_field<T>([&]<class Member>(const Field<T, Member>& field) {
    if constexpr (HasFields<Member>) {
      append_fields(to, value.*field.member);
    } else {
      to.push_back(static_cast<int>(value.*field.member));
    }
  });
}

// Keeps each plan that check() accepts, once.
class DistinctPlans final : public Candidates {
 public:
  using Candidates::Candidates;
  void add(const Plan& plan) override {
    if (!check(plan, problem, gpu).ok) return;
    std::vector<int> fields{static_cast<int>(plan.index())};
    std::visit([&](const auto& each) { append_fields(fields, each); }, plan);
    if (seen_.insert(std::move(fields)).second) plans.push_back(plan);
  }

  std::vector<Plan> plans;

 private:
  std::set<std::vector<int>> seen_;  // dataflows and all fields
};

// "global", "shared", "8 copies", or the short name of what is none of these.
std::string placement_name(const Placement& placement, int entries) {
  if (placement == all_global()) return "global";
  if (placement == all_shared(entries)) return "shared";
  if (placement == all_replicated(entries, placement.copies)) {
    return fmt::format("{} copies", placement.copies);
  }
  return short_name(placement, entries);
}

// How many of each group are kept, as evenly as their sizes allow. `most` is at most the total.
std::vector<std::size_t> shares(const std::vector<std::size_t>& sizes, std::size_t most) {
  std::vector<std::size_t> kept(sizes.size(), 0);
  for (std::size_t i = 0; most > 0; i = (i + 1) % sizes.size()) {
    if (kept[i] == sizes[i]) continue;
    ++kept[i];
    --most;
  }
  return kept;
}

// Doublings of numbers from one plan to the other, and `other` for each field of another kind that
// differs.
double far_apart(const Plan& a, const Plan& b, double other) {
  double sum = 0;
  std::visit(
      [&]<class P>(const P& from) {
        const auto& to = std::get<P>(b);
        for_each_field<P>([&]<class Member>(const Field<P, Member>& field) {
          const Member& x = from.*field.member;
          const Member& y = to.*field.member;
          if constexpr (std::is_same_v<Member, int>) {
            if (x != y) sum += std::abs(std::log2((x + 1.0) / (y + 1.0)));
          } else {
            sum += x == y ? 0 : other;
          }
        });
      },
      a);
  return sum;
}

}  // namespace

std::size_t golden_step(std::size_t size) {
  constexpr double kGolden = 0.6180339887498949;
  auto step =
      std::max<std::size_t>(1, static_cast<std::size_t>(kGolden * static_cast<double>(size)));
  while (std::gcd(step, size) != 1) ++step;
  return step;
}

std::string kind_of(const Plan& plan, const Problem& problem) {
  std::string kind(dataflow_name(plan));
  if (const auto* append = std::get_if<AppendSimt>(&plan)) {
    return fmt::format("{}, {} along entries", kind, append->warps_along_entries);
  }
  std::visit(
      [&](const auto& op) {
        for_each_operand(op, [&](Operand operand, const VqFormat& format) {
          const Placement* placement = placement_of(plan, operand);
          const std::string name =
              placement_name(placement == nullptr ? all_global() : *placement, format.entries());
          kind += operand == Operand::weights ? fmt::format(", {}", name)
                                              : fmt::format(", {} {}", enum_name(operand), name);
        });
      },
      problem);
  return kind;
}

std::optional<Plan> merged_by_last_block(Plan plan, const Problem& problem, const GpuSpec& gpu) {
  const bool may = std::visit(
      [](auto& each) {
        constexpr bool kMay = requires { each.combine = Combine::last_block; };
        if constexpr (kMay) each.combine = Combine::last_block;
        return kMay;
      },
      plan);
  if (!may || !check(plan, problem, gpu).ok) return std::nullopt;
  return plan;
}

std::optional<Plan> merged_as_cluster(Plan plan, const Problem& problem, const GpuSpec& gpu) {
  const bool may = std::visit(
      [](auto& each) {
        constexpr bool kMay = requires { each.kMayCluster; };
        if constexpr (kMay) each.combine = Combine::cluster;
        return kMay;
      },
      plan);
  if (!may || !check(plan, problem, gpu).ok) return std::nullopt;
  return plan;
}

std::vector<Plan> merged_otherwise(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                                   bool last_block) {
  std::vector<Plan> plans;
  if (const auto cluster = merged_as_cluster(plan, problem, gpu)) plans.push_back(*cluster);
  if (!last_block) return plans;
  if (const auto last = merged_by_last_block(plan, problem, gpu)) plans.push_back(*last);
  return plans;
}

Space space(const Problem& problem, const GpuSpec& gpu, const SpaceOptions& options) {
  if (!check(problem).ok) return {};
  DistinctPlans distinct(problem, gpu);
  add_plans(distinct, options.placement);
  if (options.papers) add_paper_plans(distinct);
  std::vector<Plan> all;  // each followed by the same whose splits are merged otherwise
  for (const Plan& plan : distinct.plans) {
    all.push_back(plan);
    for (const Plan& each : merged_otherwise(plan, problem, gpu, options.last_block)) {
      all.push_back(each);
    }
  }
  if (options.keep) std::erase_if(all, [&](const Plan& plan) { return !options.keep(plan); });
  const std::size_t feasible = all.size();
  if (options.most == 0 || feasible <= options.most) return {std::move(all), feasible};
  std::map<std::string, std::vector<std::size_t>> kinds;
  for (std::size_t i = 0; i < all.size(); ++i) kinds[kind_of(all[i], problem)].push_back(i);
  std::vector<std::size_t> sizes;
  for (const auto& [kind, members] : kinds) sizes.push_back(members.size());
  const std::vector<std::size_t> kept = shares(sizes, options.most);
  std::vector<std::size_t> chosen;
  std::size_t at = 0;
  for (const auto& [kind, members] : kinds) {
    // Spread evenly over every axis that was counted through to make them: such steps visit each
    // value of an inner axis as often as each of an outer one.
    const std::size_t step = golden_step(members.size());
    for (std::size_t i = 0; i < kept[at]; ++i) chosen.push_back(members[i * step % members.size()]);
    ++at;
  }
  std::sort(chosen.begin(), chosen.end());
  Space result{{}, feasible};
  for (const std::size_t i : chosen) result.plans.push_back(all[i]);
  return result;
}

double doublings(const Plan& a, const Plan& b) { return far_apart(a, b, 0); }

double distance(const Plan& a, const Plan& b) { return far_apart(a, b, 1); }

}  // namespace vqgen
