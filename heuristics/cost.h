// The cost model: the expected time of a call. Each part that cost/work.h counts, at the GPU's
// ceilings, is multiplied by a fitted coefficient (profiles/cost/*.json, scripts/fit_cost.py).
// launch, combine, prologue, fill and chain add up; the others overlap and count as the p-norm of
// their times with p = `overlap`.
//
// Coefficients are fitted on one GPU; on another only its clock, bandwidth and number of SMs scale
// them.
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

// A GEMM of another library with weights that weight_dequantize writes (heuristics/many_rows.h).
struct DenseGemmCost {
  double operations = 0;     // multiplications and additions per clock of an SM
  double written_bytes = 0;  // dense weights written per clock of an SM
  double part_us = 0;        // launches of both for a part of the weights
};

struct CostProfile {
  std::string gpu;                                                 // that it was measured on
  std::map<std::string, CostCoefficients, std::less<>> dataflows;  // keyed by cost_name()
  DenseGemmCost dense_gemm = {};
};

// The shipped profile, read once.
const CostProfile& cost_profile();
// Error(bad_input) for unknown parts, missing ones, and what is no number from 0 up.
CostProfile read_cost_profile(const Json& json, const std::string& source);

// Name of the plan's coefficients: kernel_name(), or a name of its own for wgmma_large_m plans that
// add up bytes, which are fitted apart.
std::string_view cost_name(const Plan& plan);
// True if there are coefficients for the plan's dataflow.
bool knows_dataflow(const Plan& plan, const CostProfile& coefficients = cost_profile());
// True if CostModel has a cost for such a plan.
bool is_modelled(const Plan& plan, const CostProfile& coefficients = cost_profile());

struct Cost {
  double us = 0;
  CostParts parts;  // us of each part alone; overlapping parts sum to more than their share
};

// Costs of plans of one problem. Pure: a plan's cost does not depend on those asked for before,
// though it is faster for them. Not thread-safe. Profiles and
// coefficients must outlive it.
class CostModel {
 public:
  CostModel(const Problem& problem, const GpuSpec& gpu, std::span<const AccessCounts> profiles,
            const CostProfile& coefficients = cost_profile());

  // Cost of a plan that check() accepts; nullopt if its dataflow has no coefficients, or a GEMM's
  // entries move to their operands (fusion other than permute).
  std::optional<Cost> operator()(const Plan& plan);

  // A lower bound of the cost of all GEMM plans that differ from this one in placement alone, for a
  // search; check() need not accept them. Infinite without coefficients. Not for slices, which no
  // placement describes.
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
