// How often lanes that look up entries of shared memory at once have to wait for each other.
//
// Shared memory serves 128 bytes a pass: 8 lanes of 16 bytes, 16 of 8 or 32 of 4, a phase. Entries
// of 128 / entry bytes slots stand side by side; lanes that want different entries of one slot take
// turns, lanes that want the same entry do not. So a phase takes as many passes as the most
// contended slot has different entries. For uniform codes of one stage and many entries that is 2.6
// passes for entries of 16 bytes, 3.1 for 8 and 3.5 for 4 (balls into bins); 2 stages side by side
// leave half of the slots to each and make it 3.5 for 16 bytes; a copy a lane makes it 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/access/access_counts.h"
#include "heuristics/placement/plan_use.h"

namespace vqgen {

// How the accesses of an operand fall on its entries, as the codes number them.
class Accesses {
 public:
  // Each entry as often.
  explicit Accesses(int entries);
  // As counted; uniform where nothing was. A phase reads one codebook, the more accesses it has the
  // more likely it.
  explicit Accesses(const AccessCounts& profile);

  int entries() const { return entries_; }
  bool even() const { return codebooks_.empty(); }
  // Of the accesses, those of entries begin..end - 1.
  double share(int begin, int end) const;

  // What one lane and one phase draw where accesses are not even; `random` is uniform over 64 bits.
  std::size_t codebook(std::uint64_t random) const;
  int entry(std::size_t codebook, std::uint64_t random) const;

 private:
  int entries_;
  std::vector<double> codebooks_;   // [codebook]: share of the accesses up to it; empty if uniform
  std::vector<double> cumulative_;  // [codebook][entry]: the same within it
};

// The operand's profile; null where there is none.
const AccessCounts* profile_of(std::span<const AccessCounts> profiles, Operand operand);
// How its accesses fall by that profile, uniformly where there is none.
Accesses accesses_of(std::span<const AccessCounts> profiles, const OperandUse& use);

// A level of shared memory: entries [range.begin, range.end) of each stage, `copies` times, laid
// out as templates/vq/codebook/levels.cuh does: the stages of an entry, and the copies of each,
// side by side. Lane l reads copy l % copies. Powers of two, entry_bytes * copies <= 128.
struct SharedTable {
  int entry_bytes = 16;
  int num_codebooks = 1;
  int copies = 1;
  vq::EntryRange range{};
  int lane_units = 1;  // whose tables, one after the other, lanes read at the same time
};

// Lanes that are served at once, and slots that they contend for. Less than a bank's 4 bytes is
// taken as 4: of large codebooks two lanes rarely want halves of one bank's word. More than 16 come
// 16 at a time.
constexpr int phase_lanes(int entry_bytes) {
  return entry_bytes < 4 ? 32 : entry_bytes > 16 ? 8 : 128 / entry_bytes;
}

// Expected passes of a phase whose lanes draw entries independently; lanes whose entry stands
// elsewhere are idle, so that it may be below 1. Exact where accesses are even; else drawn from a
// fixed seed: the same each time, and within about 2 / sqrt(phases) of it, 0.02 as it is.
double conflict_factor(const SharedTable& table, const Accesses& accesses, int phases = 8192);

// The same at both shared levels of the operand's placement together, which lanes of one warp visit
// one after the other.
double conflict_factor(const OperandUse& use, const Accesses& accesses, int phases = 8192);

// Passes through shared memory of one call, all multiprocessors together, were the operand placed
// so: lookups at both shared levels, and the stores that fill them. Which placement has fewer is
// which was faster on an H200 (gemm dataflow fragments, 256 entries: aqlm-2x8 at 4096 x 4096 and
// 11008 x 4096, where 8 copies win by 2.7 and 9.5 us, and gptvq-2, where filling 16 copies of a
// codebook a tile loses 2.5 us); by how much is not modelled. With a profile, of kPlacementPhases
// drawn phases, within 0.05: placements are compared in every plan that rules make.
inline constexpr int kPlacementPhases = 2048;
double shared_passes(OperandUse use, const Placement& placement, const Accesses& accesses);

}  // namespace vqgen
