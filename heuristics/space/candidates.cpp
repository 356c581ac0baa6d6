#include "heuristics/space/candidates.h"

#include <algorithm>

#include "heuristics/kernels/slice.h"
#include "heuristics/placement/conflicts.h"

namespace vqgen {
namespace {

template <HasFields T>
void add_hash(std::size_t& hash, const T& value) {
  for_each_field<T>([&]<class Member>(const Field<T, Member>& field) {
    if constexpr (HasFields<Member>) {
      add_hash(hash, value.*field.member);
    } else {
      constexpr std::size_t kPrime = 1099511628211;  // of FNV-1a
      hash = (hash ^ static_cast<std::size_t>(value.*field.member)) * kPrime;
    }
  });
}

}  // namespace

void DistinctPlans::add(const Plan& plan) {
  if (!check(plan, problem(), gpu()).ok) return;
  std::size_t hash = plan.index();
  std::visit([&](const auto& each) { add_hash(hash, each); }, plan);
  const auto [first, last] = seen_.equal_range(hash);
  if (std::any_of(first, last, [&](const auto& each) { return plans_[each.second] == plan; })) {
    return;
  }
  seen_.emplace(hash, plans_.size());
  plans_.push_back(plan);
}

void add_plans(Candidates& to, SpacePlacement allowed) {
  for_each_dataflow([&]<class P>(const P&) {
    if (const auto* op = op_of<P>(to.problem())) Slice<P>::add_candidates(to, *op, allowed);
  });
}

std::vector<Placement> whole_placements(const VqFormat& format, SpacePlacement allowed) {
  if (allowed == SpacePlacement::global) return {all_global()};
  if (allowed == SpacePlacement::shared) return {all_shared(format.entries())};
  const int lanes = phase_lanes(format.held_bytes());
  return {all_global(), all_shared(format.entries()), all_replicated(format.entries(), lanes),
          all_replicated(format.entries(), lanes / 2)};
}

std::vector<Placement> single_placements(const VqFormat& format, SpacePlacement allowed) {
  std::vector<Placement> placements = whole_placements(format, allowed);
  std::erase_if(placements, [](const Placement& each) { return each.replicated > 0; });
  return placements;
}

std::int64_t fitting_chunk(std::int64_t columns, std::int64_t run, std::int64_t unit,
                           std::int64_t in_features) {
  for (std::int64_t chunk = columns / run * run; chunk > 0; chunk -= run) {
    if (unit >= in_features || chunk % unit == 0 || unit % chunk == 0) return chunk;
  }
  return 0;
}

}  // namespace vqgen
