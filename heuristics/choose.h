// Problem and GPU to Plan, purely.
//
// Chooser rules is a few rules of thumb, ours and VQ-LLM's: fill the GPU, keep codebooks near.
// They also say where blocks share all sequences by length, which costs of equal lengths cannot
// tell; chooser model then takes the cheapest of such plans. Chooser model takes the plan of the
// space (heuristics/space.h) that the cost model (heuristics/cost.h) expects to be the fastest, and
// the rules' where is_of_rules() says so.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/problem/config.h"
#include "heuristics/check.h"
#include "heuristics/cost.h"

namespace vqgen {

enum class Chooser { rules, model };
template <>
inline constexpr auto enum_names<Chooser> = std::array{"rules", "model"};

// The one that was nearer to the best of what was measured (docs/lab/cost-model.md).
inline constexpr Chooser kDefaultChooser = Chooser::model;

// True if chosen plans may merge splits in the last block: by the rules wherever possible, by the
// model where it expects a gain. It is off by default, as it loses about as often as it gains. A
// balanced schedule has it in any case.
inline constexpr bool kDefaultLastBlock = false;

struct ChooseOptions {
  Chooser chooser = kDefaultChooser;
  std::span<const AccessCounts> profiles = {};  // from match_access_counts(); may be empty
  bool last_block = kDefaultLastBlock;
};

// The heuristics' plan, which check() may still refuse: a user's own fields may go over it first.
// Error(infeasible) with check()'s reason where no kernel does the problem, whatever the plan.
Plan propose(const Problem& problem, const GpuSpec& gpu, const ChooseOptions& options = {});

// propose() with the config's fixed fields; chooser model takes the fastest plan that has them.
Plan propose(const Config& config, const GpuSpec& gpu, const ChooseOptions& options = {});

// propose(), accepted by check(); throws Error(infeasible) with the reason otherwise.
Plan choose(const Problem& problem, const GpuSpec& gpu, const ChooseOptions& options = {});

// True if chooser model leaves such a plan to the rules: int8_mma attention, whose sizes were tuned
// one by one, and dataflows without a model.
bool is_of_rules(const Plan& plan);

// True if blocks of the plan share all sequences of a call by their lengths.
bool is_by_length(const Plan& plan);

// The dataflows by which kernels do the problem on the GPU, as a config's "dataflow" names them.
std::vector<std::string> runnable_dataflows(const Problem& problem, const GpuSpec& gpu);

struct RankedPlan {
  Plan plan;
  Cost cost;
};

// The plans of the space that choose() looks at by default and whose cost is known, the cheapest
// first; equal ones in the space's order.
std::vector<RankedPlan> rank(const Problem& problem, const GpuSpec& gpu,
                             std::span<const AccessCounts> profiles);

// The first of those ranked plans with the fields that the config fixes, at most `most`, each
// unlike the ones before: of another dataflow, or a factor of two away in a field that is no
// placement. Error(bad_input) for a field that no dataflow of the op has.
std::vector<Plan> likely_plans(const Config& config, const GpuSpec& gpu,
                               std::span<const AccessCounts> profiles, std::size_t most);

// The plan, without int8_mma attention, that the model expects to be fastest: the first cheapest of
// space(problem, gpu, {.most = 0, .last_block}).plans, found by bounds without building the space.
// nullopt if no plan has a cost. Requires that check() accepts the problem.
std::optional<Plan> cheapest_plan(const Problem& problem, const GpuSpec& gpu,
                                  std::span<const AccessCounts> profiles, bool last_block,
                                  const CostProfile& coefficients = cost_profile());

}  // namespace vqgen
