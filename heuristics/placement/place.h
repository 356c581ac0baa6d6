// The boundaries of the codebook cache (VQ-LLM, section V-B): which entries of each codebook stand
// in registers, in shared memory with a copy a lane, there once, or in global memory.
//
// Strategy paper is the paper's: entries read more often than mean + 3 sigma in registers, as many
// of the rest in shared memory as the slack holds, no resident block lost for either. Strategy
// measured weighs levels by the passes through shared memory that they save (conflicts.h), gives
// whole codebooks room even where resident blocks are lost, and copies entries for each lane.
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

// A level that catches a smaller share of the accesses is left out: its comparison is paid by all
// of them. Two lanes of a warp.
inline constexpr double kLeastShare = 1.0 / 16;
// Copies may cost resident blocks as long as so many warps stay on a multiprocessor, or all that
// the grid has for it: enough loads in flight. So chosen for fragments on an H200.
inline constexpr int kWarpsWithCopies = 16;
// Registers a thread before a kernel is compiled: what half of an SM's warps can have.
inline constexpr int kAssumedRegisters = 64;

struct PlaceOptions {
  Strategy strategy = Strategy::measured;
  // Of the kernel as compiled with no entries in registers; without it none are put there.
  std::optional<int> registers = std::nullopt;
};

// What was decided for one operand, and why: a line a level.
struct OperandPlacement {
  Operand operand = Operand::weights;
  Placement placement = {};
  std::vector<std::string> reasons = {};
};

struct Placed {
  Plan plan;
  std::vector<OperandPlacement> operands;
};

// The plan with all boundaries set anew; what they were does not matter. `profiles` holds one of
// each operand at most, of its format and units (core/access/access_counts.h); accesses of
// others are taken as uniform. A plan that check() refuses with all entries in global memory comes
// back as it was, and so does one whose dataflow places none; else check() accepts the result.
// Pure: equal arguments give equal results.
Placed place(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
             std::span<const AccessCounts> profiles, const PlaceOptions& options = {});

// Of the passes through shared memory, what copies may leave: a win that no small error of the
// model undoes; and one that pays where passes are the limit, as in attention by fragments (two
// copies of 4096 entries leave 0.9 of the values' passes: 125 -> 115 us for d8b12, 16 x 16384,
// H200).
inline constexpr double kClearly = 0.75;
inline constexpr double kWorthwhile = 0.93;

// The plan with copies of each codebook that stands in shared memory whole, a copy a lane or fewer,
// where that wins without any profile: fewer than `below` times the passes, fills counted, and
// warps enough.
Plan with_copies_where_they_win(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                                double below = kClearly);

}  // namespace vqgen
