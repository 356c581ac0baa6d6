// The terms of the cost model (heuristics/cost.h): the work of a call, weighed by the GPU's
// ceilings alone. Each dataflow counts the work of one of its blocks; the step from blocks to time
// is common.
//
// Times are of the busiest SM, which has ceil(blocks / SMs) of them, less a part for the share of
// common resources that others leave it. A wave is as many blocks as are resident at a time.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <tuple>

#include "core/gpu/gpu_spec.h"
#include "heuristics/placement/conflicts.h"

namespace vqgen {

inline constexpr double kLatencyCycles = 300;  // of L2, about; a coefficient makes it what it is
inline constexpr double kL2Bytes = 64;         // that an SM reads of L2 a clock

// The first six follow each other, the others overlap.
enum class CostPart {
  launch,    // one kernel
  combine,   // merging splits: the second kernel's launch and its chained loads; or what
             // the last block does: barriers, its counter, and its loads; all partial sums
  cluster,   // a cluster: its barriers, and what a block loads from the others
  prologue,  // the start; waves x chunks: barriers, and the first loads behind each
  fill,      // waves x loads that a thread waits for to fill codebooks, tables and staged x; the
             // L1, with the lookups of GEMMs in global memory
  chain,     // waves x loads of codes that a warp waits for, one after the other; and what it waits
             // for of lookups in global memory
  memory,    // codes and codebooks from device memory
  l2,        // what blocks read of L2, and the partial sums of splits that they write
  shared,    // passes through shared memory, bank conflicts counted
  lines,     // cache lines that lookups in global memory touch
  lookups,   // warp instructions that look up
  arithmetic,  // warp instructions that multiply, add and rebuild
  tensor,      // products of the tensor core
};
template <>
inline constexpr auto enum_names<CostPart> =
    std::array{"launch", "combine", "cluster", "prologue", "fill",       "chain", "memory",
               "l2",     "shared",  "lines",   "lookups",  "arithmetic", "tensor"};
inline constexpr std::size_t kCostParts = enum_names<CostPart>.size();

// A value a part.
struct CostParts {
  std::array<double, kCostParts> of{};
  double& operator[](CostPart part) { return of[static_cast<std::size_t>(part)]; }
  double operator[](CostPart part) const { return of[static_cast<std::size_t>(part)]; }
};

// Work of one block from its first to its last instruction, on average, and what the call does
// besides.
struct BlockWork {
  int threads = 0;
  int registers = 0;  // per thread, as estimated before compiling
  int resident = 1;   // blocks that the compiler leaves registers to
  std::int64_t shared_bytes = 0;
  std::int64_t blocks = 0;
  int cluster = 1;           // blocks that run at once
  double prologue = 0;       // in turn: chunks or tiles of the block,
  double start = 0;          // before the first, unless the last call's merging hides it,
  double fill = 0;           // loads that a thread does to fill, so many times,
  double fills = 1;          // all of them alike:
  double hidden_fill = 0;    // part of `fill` that the first wave overlaps with the previous call,
  double hidden_passes = 0;  // part of `passes` that it overlaps
  double hidden_l2_bytes = 0;  // and of `l2_bytes`,
  double chain = 0;            // loads of codes that a warp does
  double l2_bytes = 0;         // of the whole block, as all below
  double passes = 0;
  double lines = 0;
  double first_lines = 0;      // lines that no recent lookup has touched
  double global_lookups = 0;   // lookups in global memory
  double looked_up_bytes = 0;  // bytes of those lookups
  // Bytes of codebook entries not yet in L1 that an SM can load per clock. 0 leaves the term out:
  // attention counts its first lookups separately.
  double first_bytes = 0;
  double gathered_bytes = 0;   // bytes of the codebooks that lookups in global memory touch
  std::int64_t gathering = 1;  // blocks that follow each other and touch the same of these,
  std::int64_t books = 1;      // number of these codebooks
  double lookups = 0;
  double arithmetic = 0;
  double products = 0;      // MMAs of m16n8k16
  double turns = 0;         // iterations of loops that spill registers
  double warp_turns = 0;    // per-warp iterations of spilling loops
  double memory_bytes = 0;  // of the whole call, as all below
  double partial_bytes = 0;
  // Merging splits: kernel launches of 1 us each, and loads that a thread waits for one after the
  // other.
  double merge_launches = 0;
  double merge_turns = 0;
  double exchanged_bytes = 0;  // that a block of a cluster loads from all of its blocks
  double cluster_us = 1.5;     // two barriers of a cluster
  double peer_bytes = 100;     // that an SM loads of others a clock
  // Share of a block that the busiest SM is spared if others have one less, in one wave and in
  // several; fitted.
  double spared = 0.3;
  double spared_of_several = 0.1;
  double times = 1;             // that all of it takes, by fits to what else is counted
  double times_of_several = 1;  // as above, if an SM has several blocks
};

// Passes of a phase of lanes, remembered: plans of one problem differ in few placements.
class ConflictTable {
 public:
  explicit ConflictTable(std::span<const AccessCounts> profiles) : profiles_(profiles) {}

  // How an operand's lookups are distributed over the levels.
  struct Levels {
    double passes = 0;       // a phase, at both shared levels
    double global = 0;       // share of lookups in global memory
    double lines = 0;        // that such a lookup touches,
    double first_lines = 0;  // first touches of a line
  };
  Levels of(const OperandUse& use);

 private:
  using Key = std::tuple<Operand, int, int, int, int, int, int, int>;
  std::span<const AccessCounts> profiles_;
  std::map<Operand, Accesses> accesses_;
  std::map<Key, Levels> known_;  // some ten
};

// The plan must be one that check() accepts.
BlockWork block_work(const Plan& plan, const Problem& problem, ConflictTable& conflicts);

// Parts in us, each at the GPU's own ceiling; parts that count turns take one L2 latency each.
CostParts ideal_us(const BlockWork& work, const GpuSpec& gpu);

// Counts that all dataflows share: filling the near levels, and looking up. `a_block` lookups are
// those of one block, in warp instructions, all blocks alike.
void add_fill(BlockWork& to, const OperandUse& use);
void add_lookups(BlockWork& to, const OperandUse& use, double a_block, ConflictTable& conflicts);
// The memory part of lookups that depends on the placement.
void add_levels(BlockWork& to, const OperandUse& use, double a_block, ConflictTable& conflicts);

}  // namespace vqgen
