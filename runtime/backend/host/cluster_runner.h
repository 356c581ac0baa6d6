// Runs the blocks of a cluster (or a single block) in turn up to the next cluster barrier, where a
// block pauses until all have arrived. A block that does not wait for its peers thus runs far ahead
// of them or behind.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/backend/host/block_runner.h"

namespace vqgen::host {

// One a worker.
class ClusterRunner {
 public:
  ClusterRunner(LaneOrder order, std::uint64_t seed, bool check_races);

  // Readies blocks of a launch, whose grid has whole clusters along z; `entry` is this worker's own
  // copy. std::bad_alloc.
  void begin(const Launch& launch, const vq::host::Entry& entry);

  // Runs cluster number `index` of the grid, x fastest. nullopt where all is well, else what went
  // wrong, in one line.
  std::optional<std::string> run(std::uint64_t index);

 private:
  std::optional<std::string> run_to_end();
  std::vector<std::size_t> order_of(std::uint64_t round) const;

  LaneOrder order_;
  std::uint64_t seed_;
  std::optional<RaceChecker> races_;
  const Launch* launch_ = nullptr;
  std::vector<std::unique_ptr<BlockRunner>> blocks_;
};

}  // namespace vqgen::host
