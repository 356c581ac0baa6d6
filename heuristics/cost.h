// What a call of a plan is expected to take: the parts that cost/work.h counts at the GPU's own
// ceilings, each times a coefficient that was fitted to measurements (profiles/cost/*.json,
// scripts/fit_cost.py). launch, combine, prologue, fill and chain follow each other; the others
// overlap, and count as the p-norm of their times with p = `overlap`: 1 would be their sum, much
// more the longest alone.
//
// Coefficients were measured on one GPU; on another its own clock, bandwidth and number of
// multiprocessors scale them, and nothing else does.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/json/json.h"
#include "heuristics/cost/work.h"

namespace vqgen {

struct CostCoefficients {
  double overlap = 1;
  CostParts of;  // no unit: how many times the ceiling's time a part takes; launch: us
};

struct CostProfile {
  std::string gpu;                                                 // that it was measured on
  std::string source;                                              // by which commands
  std::map<std::string, CostCoefficients, std::less<>> dataflows;  // by cost_name()
};

// The shipped profile, read once.
const CostProfile& cost_profile();
// Error(bad_input) for unknown parts, missing ones, and what is no number from 0 up.
CostProfile read_cost_profile(const Json& json, const std::string& source);

// What coefficients are known by: kernel_name(), and apart from it row groups that add up bytes,
// which were fitted by themselves.
std::string_view cost_name(const Plan& plan);
// Whether there are coefficients for the plan's dataflow.
bool knows_dataflow(const Plan& plan, const CostProfile& coefficients = cost_profile());
// Whether CostModel has a cost for such a plan.
bool is_modelled(const Plan& plan, const CostProfile& coefficients = cost_profile());

struct Cost {
  double us = 0;
  CostParts parts;  // us of each part by itself; those that overlap add up to more than their share
};

// Costs of plans of one problem. Pure: a plan's cost does not depend on those asked for before,
// though it is faster for them. Not thread-safe. Profiles and
// coefficients must outlive it.
class CostModel {
 public:
  CostModel(const Problem& problem, const GpuSpec& gpu, std::span<const AccessCounts> profiles,
            const CostProfile& coefficients = cost_profile());

  // Of a plan that check() accepts; nothing where its dataflow has no coefficients, nor for
  // fragments of a product whose entries move to their operands (fusion other than permute).
  std::optional<Cost> operator()(const Plan& plan);

  // A lower bound, for a search among products that are alike but for where their codebooks stand:
  // what all that are like this one cost at least. Such plans need not be what check() accepts.
  // Infinite where the dataflow has no coefficients. Not of dataflow slices, whose entries stand
  // where no placement says.
  double least_us(const Plan& plan);

  // The parts at the ceilings.
  CostParts ideal(const Plan& plan);

 private:
  const CostCoefficients* coefficients_of(const Plan& plan) const;

  Problem problem_;
  GpuSpec gpu_;
  const CostProfile& coefficients_;
  ConflictTable conflicts_;
};

}  // namespace vqgen
