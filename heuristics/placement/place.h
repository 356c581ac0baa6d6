// The boundaries of the codebook cache (VQ-LLM, section V-B): which entries of each codebook are in
// registers, in shared memory with a copy per lane, in shared memory once, or in global memory.
//
// Strategy paper puts entries read more often than mean + 3 sigma in registers, and the rest in
// shared memory as far as the slack holds without losing a resident block. Strategy measured weighs
// the wavefronts that each level saves (conflicts.h), holds whole codebooks even if resident blocks
// are lost, copies entries per lane, and puts none in registers.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/access/access_counts.h"
#include "heuristics/check.h"

namespace vqgen {

enum class Strategy { paper, measured };
template <>
inline constexpr auto enum_names<Strategy> = std::array{"paper", "measured"};

// A level with a smaller share of the accesses is omitted, as all accesses pay for its comparison:
// two lanes of a warp.
inline constexpr double kLeastShare = 1.0 / 16;
// Copies may cost resident blocks as long as this many warps stay on an SM, or all that the grid
// has for it: enough loads in flight.
inline constexpr int kWarpsWithCopies = 16;
// Registers per thread before a kernel is compiled: half of an SM's warps can have these.
inline constexpr int kAssumedRegisters = 64;

struct PlaceOptions {
  Strategy strategy = Strategy::measured;
  // Registers of the kernel compiled with no entries in registers; without it strategy paper puts
  // none there.
  std::optional<int> registers = std::nullopt;
};

// The decision for one operand and its reasons, one line per level.
struct OperandPlacement {
  Operand operand = Operand::weights;
  Placement placement = {};
  std::vector<std::string> reasons = {};
};

struct Placed {
  Plan plan;
  std::vector<OperandPlacement> operands;
};

// The plan with all boundaries set anew. `profiles` has at most one per operand, with its format
// and units; other accesses count as uniform. Pure. Returns the plan as it was if it places none or
// is infeasible with all entries in global memory; else check() accepts the result.
Placed place(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
             std::span<const AccessCounts> profiles, const PlaceOptions& options = {});

// Share of shared-memory wavefronts that copies may leave: a win that no small model error undoes,
// and one that pays where wavefronts are the limit, as in mma attention.
inline constexpr double kClearly = 0.75;
inline constexpr double kWorthwhile = 0.93;

// The plan with copies, one per lane or fewer, of each codebook that is whole in shared memory, if
// they win without a profile: less than `below` of the wavefronts, fills included, and enough
// warps.
Plan with_copies_where_they_win(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                                double below = kClearly);

}  // namespace vqgen
