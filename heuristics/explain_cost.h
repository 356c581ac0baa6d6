// What a plan is expected to take and what other plans would, as text.
#pragma once

#include <string>
#include <vector>

#include "core/gpu/gpu_spec.h"
#include "heuristics/choose.h"

namespace vqgen {

// The expected time and its parts, and where the model's coefficients come from.
std::vector<std::string> cost_lines(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                                    std::span<const HotnessProfile> profiles);

// The cheapest plan of each of the next best kinds (kind_of), cheapest first: its expected time,
// and the fields that differ from this plan's.
std::vector<std::string> other_plan_lines(const Plan& plan, const Problem& problem,
                                          const GpuSpec& gpu,
                                          std::span<const HotnessProfile> profiles);

}  // namespace vqgen
