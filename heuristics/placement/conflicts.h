// Bank conflicts of lanes that look up entries in shared memory at once.
//
// Shared memory serves 128 bytes per wavefront: 8 lanes of 16 bytes, 16 of 8 or 32 of 4, a phase.
// A wavefront has 128 / (bytes per entry) slots; lanes that want different entries of one slot are
// serialized, so a phase takes as many wavefronts as the most contended slot has different entries
// (balls into bins). Stages side by side leave fewer slots to each; a copy per lane makes it 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/access/access_counts.h"
#include "heuristics/placement/plan_use.h"

namespace vqgen {

// Distribution of an operand's accesses over its entries, as the codes number them.
class Accesses {
 public:
  // Each entry as often.
  explicit Accesses(int entries);
  // Accesses as counted; uniform without counts. A phase reads one codebook, chosen in proportion
  // to its accesses.
  explicit Accesses(const AccessCounts& profile);

  int entries() const { return entries_; }
  bool even() const { return codebooks_.empty(); }
  // Share of accesses to entries begin..end - 1.
  double share(int begin, int end) const;

  // What one lane and one phase draw if accesses are not uniform; `random` is uniform over 64 bits.
  std::size_t codebook(std::uint64_t random) const;
  int entry(std::size_t codebook, std::uint64_t random) const;

 private:
  int entries_;
  std::vector<double> codebooks_;   // [codebook]: share of the accesses up to it; empty if uniform
  std::vector<double> cumulative_;  // [codebook][entry]: the same within it
};

// The operand's profile; null where there is none.
const AccessCounts* profile_of(std::span<const AccessCounts> profiles, Operand operand);
// The operand's accesses by its profile, or uniform without one.
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

// Expected wavefronts of a phase whose lanes draw entries independently; lanes with entries
// elsewhere are idle, so that it may be below 1. Exact if accesses are uniform; else drawn with a
// fixed seed, within about 2 / sqrt(phases).
double conflict_factor(const SharedTable& table, const Accesses& accesses, int phases = 8192);

// conflict_factor() over both shared levels of the operand's placement, which a warp's lanes visit
// one after the other.
double conflict_factor(const OperandUse& use, const Accesses& accesses, int phases = 8192);

// Shared-memory wavefronts of one call on all SMs if the operand were placed so: lookups at both
// shared levels and the stores that fill them. Fewer is faster; by how much is not modelled. A
// profile is sampled in kPlacementPhases phases, as rules compare placements in every plan.
inline constexpr int kPlacementPhases = 2048;
double shared_passes(OperandUse use, const Placement& placement, const Accesses& accesses);

}  // namespace vqgen
