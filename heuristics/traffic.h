// Expected traffic of one call of a plan, level by level, and what an SM holds of it: computed
// figures for `vqgen explain`.
#pragma once

#include <span>

#include "core/access/access_counts.h"
#include "heuristics/occupancy.h"
#include "heuristics/placement/plan_use.h"

namespace vqgen {

struct OperandTraffic {
  Operand operand = Operand::weights;
  bool profiled = false;      // else accesses are taken as uniform
  double code_bytes = 0;      // from device memory, once
  double code_l2_bytes = 0;   // from L2 to the SMs: once for each block that needs them
  double codebook_bytes = 0;  // the whole tensor's, from device memory, once
  double fill_l2_bytes = 0;   // from L2 to what blocks keep near
  double lookups = 0;         // entries read
  double in_registers = 0;    // shares of the lookups, by level
  double replicated = 0;
  double shared = 0;
  double global = 0;
  double lookup_bytes = 0;     // read from shared memory
  double lookup_l2_bytes = 0;  // sectors of 32 bytes of entries in global memory; L1 may catch some
  double conflict_factor = 0;  // passes that a phase of lanes takes at the shared levels together
  double conflict_factor_once = 0;  // were all of its entries held there once

  static constexpr auto fields() {
    using T = OperandTraffic;
    return std::make_tuple(
        field("operand", &T::operand, required(), "which tensor"),
        field("profiled", &T::profiled, required(), "shares by access counts, else uniform"),
        field("code_bytes", &T::code_bytes, required(), "codes from device memory"),
        field("code_l2_bytes", &T::code_l2_bytes, required(), "codes from L2"),
        field("codebook_bytes", &T::codebook_bytes, required(), "codebooks from device memory"),
        field("fill_l2_bytes", &T::fill_l2_bytes, required(), "codebooks from L2 to near levels"),
        field("lookups", &T::lookups, required(), "entries read"),
        field("in_registers", &T::in_registers, required(), "share of the lookups"),
        field("replicated", &T::replicated, required(), "share of the lookups"),
        field("shared", &T::shared, required(), "share of the lookups"),
        field("global", &T::global, required(), "share of the lookups"),
        field("lookup_bytes", &T::lookup_bytes, required(), "read from shared memory"),
        field("lookup_l2_bytes", &T::lookup_l2_bytes, required(), "global lookups, before L1"),
        field("conflict_factor", &T::conflict_factor, required(), "passes a phase of lanes"),
        field("conflict_factor_once", &T::conflict_factor_once, required(),
              "the same, all entries shared once"));
  }
};

// `profiles` as place() takes them.
std::vector<OperandTraffic> expected_traffic(const Plan& plan, const Problem& problem,
                                             std::span<const AccessCounts> profiles);

struct Residency {
  int registers = 0;  // of the kernel, per thread
  std::int64_t shared_bytes = 0;
  int threads = 0;
  std::int64_t blocks = 0;  // of the grid
  Occupancy occupancy;
  Slack slack;

  // Blocks that the grid has for an SM, where these are fewer than could be resident.
  std::int64_t blocks_an_sm(const GpuSpec& gpu) const { return (blocks + gpu.sms - 1) / gpu.sms; }
};

Residency expected_residency(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                             int registers);

}  // namespace vqgen
