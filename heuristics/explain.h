// Why a plan is what it is: a line a decision for the head of the kernel text, and a report for
// people who know GPUs and not vqgen.
#pragma once

#include <string>
#include <vector>

#include "heuristics/check.h"
#include "heuristics/placement/place.h"
#include "heuristics/traffic.h"

namespace vqgen {

std::vector<std::string> explain(const Plan& plan, const Problem& problem, const GpuSpec& gpu);

struct ReportInput {
  std::span<const AccessCounts> profiles = {};        // from match_access_counts(); may be empty
  std::span<const OperandPlacement> placements = {};  // from place(); may be empty
  std::optional<int> registers = std::nullopt;        // of the compiled kernel, if there is one
};

struct ReportSection {
  std::string title;
  std::vector<std::string> lines;
};

// Describes the problem, a block's resources, placements with their reasons, traffic, and how
// decoded entries reach the arithmetic. check() must accept the plan.
std::vector<ReportSection> report(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                                  const ReportInput& input = {});

// How decoded entries reach a plan's arithmetic: the mapping of one MMA fragment.
std::vector<std::string> fusion_lines(const Plan& plan, const Problem& problem);

// The expected time and its parts, and the file of the model's coefficients.
std::vector<std::string> cost_lines(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                                    std::span<const AccessCounts> profiles);

// The cheapest plan of each of the next best kinds (kind_of), cheapest first: its expected time,
// and the fields that differ from this plan's.
std::vector<std::string> other_plan_lines(const Plan& plan, const Problem& problem,
                                          const GpuSpec& gpu,
                                          std::span<const AccessCounts> profiles);

// Entries of 8 bits instead of 16, or the reverse, that are expected to be faster, with their
// times; a line that says so if there are none.
std::vector<std::string> other_entries_lines(const Plan& plan, const Problem& problem,
                                             const GpuSpec& gpu);

// The other presets for the same use, of as many bits, that are expected to be the fastest; or a
// line that says that none are faster.
std::vector<std::string> other_presets_lines(const Plan& plan, const Problem& problem,
                                             const GpuSpec& gpu);

}  // namespace vqgen
