#include "runtime/backend/host/cluster_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace vqgen::host {

ClusterRunner::ClusterRunner(LaneOrder order, std::uint64_t seed, bool check_races)
    : order_(order), seed_(seed) {
  if (check_races) races_.emplace();
}

void ClusterRunner::begin(const Launch& launch, const vq::host::Entry& entry) {
  launch_ = &launch;
  const auto count = static_cast<std::size_t>(entry.cluster);
  RaceChecker* const races = races_ ? &*races_ : nullptr;
  while (blocks_.size() < count) {
    blocks_.push_back(std::make_unique<BlockRunner>(order_, seed_, races));
  }
  blocks_.resize(count);
  for (unsigned i = 0; i < count; ++i) blocks_[i]->begin(launch, entry, blocks_, i);
  if (races_) races_->begin_launch(static_cast<std::uint64_t>(launch.shape->shared_bytes), count);
}

std::optional<std::string> ClusterRunner::run(std::uint64_t index) {
  const Dim3& grid = launch_->shape->grid;
  const std::uint64_t layer = std::uint64_t{grid.x} * grid.y;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i]->prepare(index % layer + layer * (index / layer * blocks_.size() + i));
  }
  std::optional<std::string> fault = run_to_end();
  if (!fault) return fault;
  for (const auto& each : blocks_) each->clean();
  return fault;
}

std::optional<std::string> ClusterRunner::run_to_end() {
  for (std::uint64_t round = 0;; ++round) {
    for (const std::size_t i : order_of(round)) {
      BlockRunner& block = *blocks_[i];
      block.run();
      if (std::optional<std::string> fault = block.take_fault()) return fault;
    }
    const auto waits = [](const auto& block) {
      return block->progress() == Progress::at_cluster_barrier;
    };
    const auto waiting = std::find_if(blocks_.begin(), blocks_.end(), waits);
    if (waiting == blocks_.end()) return std::nullopt;
    const Wait& wait = (*waiting)->wait();
    const auto other = std::find_if_not(blocks_.begin(), blocks_.end(), [&](const auto& block) {
      return waits(block) && block->wait().collective == wait.collective;
    });
    if (other != blocks_.end()) {
      return fmt::format(
          "{}: waits at {} while {} {}; let all blocks of a cluster reach the same barriers",
          (*waiting)->where(), name_of(wait), (*other)->block_text(),
          waits(*other) ? "waits at " + name_of((*other)->wait()) : "has ended");
    }
    if (races_ && wait.collective == Collective::kSyncCluster) races_->cluster_barrier();
  }
}

std::vector<std::size_t> ClusterRunner::order_of(std::uint64_t round) const {
  std::vector<std::size_t> order(blocks_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (order_ == LaneOrder::reverse) std::reverse(order.begin(), order.end());
  if (order_ == LaneOrder::random && order.size() > 1) {
    std::shuffle(order.begin(), order.end(), std::mt19937_64(seed_ + round));
  }
  return order;
}

}  // namespace vqgen::host
