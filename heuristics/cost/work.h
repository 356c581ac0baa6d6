// What a call of a plan does, counted and weighed by nothing but the ceilings of the GPU: the terms
// of the cost model (heuristics/cost.h). Each dataflow counts what one of its blocks does; from
// blocks to time is the same for all.
//
// Times are of the busiest multiprocessor, which has ceil(blocks / SMs) of them, less a part of
// what others have not: they leave it more of what all share. `waves` are the turns in which its
// blocks run, as many as are resident at a time.
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
  combine,   // of splits: the second kernel's launch, and its loads one after the other; or what
             // the last block does: barriers, its counter, and its loads; all partial sums
  cluster,   // of one: its barriers, and what a block loads from the others
  prologue,  // the start; waves x chunks: barriers, and the first loads behind each
  fill,      // waves x loads that a thread waits for to fill codebooks, tables and staged x; the
             // first-level cache, with what products look up in global memory
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

// What one block does from its first to its last instruction, on average; what the call does
// beside.
struct BlockWork {
  int threads = 0;
  int registers = 0;  // a thread, as far as can be told before compiling
  int resident = 1;   // blocks that the compiler leaves registers to
  std::int64_t shared_bytes = 0;
  std::int64_t blocks = 0;
  int cluster = 1;             // blocks that run at once
  double prologue = 0;         // in turn: chunks or tiles of the block,
  double start = 0;            // before the first, unless the last call's merging hides it,
  double fill = 0;             // loads that a thread does to fill, so many times,
  double fills = 1;            // all of them alike:
  double hidden_fill = 0;      // of `fill`, in the first wave, these pass while the last call ends,
  double hidden_passes = 0;    // as do these of `passes`
  double hidden_l2_bytes = 0;  // and of `l2_bytes`,
  double chain = 0;            // loads of codes that a warp does
  double l2_bytes = 0;         // of the whole block, as all below
  double passes = 0;
  double lines = 0;
  double first_lines = 0;      // of these, those that no lookup just before has touched
  double global_lookups = 0;   // of `lookups`, those in global memory
  double looked_up_bytes = 0;  // by these
  // That an SM loads a clock of entries which its cache has not yet; 0: no such wait is counted.
  // Of products, as fitted (H200); attention's first lookups are a term of its own.
  double first_bytes = 0;
  double gathered_bytes = 0;   // of the codebooks that lookups in global memory touch
  std::int64_t gathering = 1;  // blocks that follow each other and touch the same of these,
  std::int64_t books = 1;      // of which there are so many
  double lookups = 0;
  double arithmetic = 0;
  double products = 0;      // of m16n8k16
  double turns = 0;         // of loops whose registers, past the limit, go to memory and back
  double warp_turns = 0;    // of loops of each warp, which waits for them besides
  double memory_bytes = 0;  // of the whole call, as all below
  double partial_bytes = 0;
  // Of merging splits: a second kernel's launch, 1 us each, and loads that a thread waits for, one
  // after the other.
  double merge_launches = 0;
  double merge_turns = 0;
  double exchanged_bytes = 0;  // that a block of a cluster loads from all of its blocks
  double cluster_us = 1.5;     // of two barriers of a cluster; fits found 1.05 to 1.09 of both
  double peer_bytes = 100;     // that an SM loads of others a clock
  // Share of a block that the busiest multiprocessor is spared where others have one less, in one
  // wave and in several: by fits to 20,000 plans of 136 products and 11,000 of attention (H200).
  double spared = 0.3;
  double spared_of_several = 0.1;
  double times = 1;             // that all of it takes, by fits to what else is counted
  double times_of_several = 1;  // likewise, where a multiprocessor has several blocks
};

// Passes of a phase of lanes, remembered: plans of one problem differ in few placements.
class ConflictTable {
 public:
  explicit ConflictTable(std::span<const AccessCounts> profiles) : profiles_(profiles) {}

  // How lookups of an operand fall on the levels.
  struct Levels {
    double passes = 0;       // a phase, at both shared levels
    double global = 0;       // share of lookups that stand in global memory
    double lines = 0;        // that such a lookup touches,
    double first_lines = 0;  // those of which no lookup just before has touched
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

// In us, each part at the GPU's own ceiling; parts that count turns at one L2 latency each.
CostParts ideal_us(const BlockWork& work, const GpuSpec& gpu);

// What the counts of all dataflows share: filling what the block keeps near, and looking up.
// `a_warp` lookups of one warp instruction each, all blocks alike.
void add_fill(BlockWork& to, const OperandUse& use);
void add_lookups(BlockWork& to, const OperandUse& use, double a_block, ConflictTable& conflicts);
// What lookups take of memory: of the latter, what depends on the placement.
void add_levels(BlockWork& to, const OperandUse& use, double a_block, ConflictTable& conflicts);

}  // namespace vqgen
