// The search space: plans worth considering for a problem on a GPU, for tuning and for the cost
// model. Each dataflow declares its part (heuristics/kernels/) with few values per axis, chosen by
// meaning (warps per SM rather than a number of splits), so that the space has some thousands of
// plans.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "heuristics/check.h"

namespace vqgen {

// Where codebooks may be. global and shared are VQ-LLM's two baselines: all entries of all
// codebooks there, all else unrestricted.
enum class SpacePlacement { any, global, shared };
template <>
inline constexpr auto enum_names<SpacePlacement> = std::array{"any", "global", "shared"};

struct SpaceOptions {
  std::size_t most = 150;  // plans kept; 0 keeps all
  SpacePlacement placement = SpacePlacement::any;
  // Plans whose last block merges the splits, beside those by a kernel or as a cluster.
  bool last_block = true;
  // Plans by methods of papers too, which choosing leaves out (heuristics/papers/papers.h).
  bool papers = false;
  std::function<bool(const Plan&)> keep = {};  // leaves out plans before they are counted
};

struct Space {
  std::vector<Plan> plans;
  std::size_t feasible = 0;  // how many there were before some were left out
};

// Distinct plans that check() accepts, in a fixed order; equal arguments give equal plans. If there
// are more than `most`, each kind of plan (kind_of) keeps an even share, spread over its axes.
// Empty if check() refuses the problem or no plan fits the placement.
Space space(const Problem& problem, const GpuSpec& gpu, const SpaceOptions& options = {});

// A step that visits each of `size` once, and any few of them in a row far from each other: about
// the golden ratio of `size`, without a common factor.
std::size_t golden_step(std::size_t size);

// The plan with its splits merged by the last block, or as a cluster; nullopt where that cannot be.
std::optional<Plan> merged_by_last_block(Plan plan, const Problem& problem, const GpuSpec& gpu);
std::optional<Plan> merged_as_cluster(Plan plan, const Problem& problem, const GpuSpec& gpu);
// Plans that differ from `plan` in what merges the splits: by a kernel; by the last block if asked.
std::vector<Plan> merged_otherwise(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                                   bool last_block);

// The dataflow and the placement, which decide most: "mma, 8 copies".
std::string kind_of(const Plan& plan, const Problem& problem);

// How often numbers must be doubled or halved to get from one plan to the other, of the same
// dataflow.
double doublings(const Plan& a, const Plan& b);
// doublings(), plus one for each placement and name that differs.
double distance(const Plan& a, const Plan& b);

}  // namespace vqgen
