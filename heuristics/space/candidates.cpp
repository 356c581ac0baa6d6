#include "heuristics/space/candidates.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "heuristics/placement/conflicts.h"

namespace vqgen {
namespace {

template <HasFields T>
void append_fields(std::vector<int>& key, const T& value) {
  for_each_field<T>([&]<class Member>(const Field<T, Member>& field) {
    if constexpr (HasFields<Member>) {
      append_fields(key, value.*field.member);
    } else {
      key.push_back(static_cast<int>(value.*field.member));
    }
  });
}

}  // namespace

void Candidates::add(const Plan& plan) {
  if (!check(plan, problem_, gpu_).ok) return;
  std::vector<int> key;
  std::visit([&](const auto& each) { append_fields(key, each); }, plan);
  if (seen_.insert(std::move(key)).second) plans_.push_back(plan);
}

std::vector<Placement> whole_placements(const VqFormat& format, SpacePlacement allowed) {
  if (allowed == SpacePlacement::global) return {all_global()};
  if (allowed == SpacePlacement::shared) return {all_shared(format.entries())};
  const int lanes = phase_lanes(format.vector_size * 2);
  return {all_global(), all_shared(format.entries()), all_replicated(format.entries(), lanes),
          all_replicated(format.entries(), lanes / 2)};
}

std::int64_t even_splits(std::int64_t pieces, std::int64_t wanted) {
  const std::int64_t most = std::clamp<std::int64_t>(wanted, 1, pieces);
  return ceil_div(pieces, ceil_div(pieces, most));
}

}  // namespace vqgen
