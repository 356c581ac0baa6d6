#include "heuristics/occupancy.h"

#include <limits>

namespace vqgen {
namespace {

// Limits of every GPU since compute capability 3.5.
constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;
constexpr int kMostRegisters = 255;

constexpr int kUnlimited = std::numeric_limits<int>::max();

template <class Integer>
Integer rounded_up(Integer value, Integer granule) {
  return (value + granule - 1) / granule * granule;
}

// Each partition has its own registers and holds whole warps. A block's warps may go to any
// partition, but the hardware admits a block as if each held as many.
int blocks_by_registers(const GpuSpec& gpu, int warps, int registers) {
  if (registers > kMostRegisters) return 0;
  if (registers == 0) return kUnlimited;
  const int a_warp = rounded_up(registers * kWarp, gpu.registers_granule);
  const std::int64_t admitted = std::int64_t{a_warp} * rounded_up(warps, gpu.sm_partitions);
  if (admitted > gpu.registers_per_sm) return 0;
  return gpu.registers_per_sm / gpu.sm_partitions / a_warp * gpu.sm_partitions / warps;
}

int blocks_by_shared_memory(const GpuSpec& gpu, std::int64_t shared_bytes) {
  if (shared_bytes > gpu.shared_bytes_per_block) return 0;
  const std::int64_t taken =
      rounded_up<std::int64_t>(shared_bytes + gpu.shared_bytes_reserved, gpu.shared_bytes_granule);
  return taken == 0 ? kUnlimited : static_cast<int>(gpu.shared_bytes_per_sm / taken);
}

// The largest amount from `used` to `most` for which `holds` does, given that it does for `used`
// and no more once it has failed.
template <class Integer, class Holds>
Integer largest(Integer used, Integer most, Holds&& holds) {
  while (used < most) {
    const Integer middle = used + (most - used + 1) / 2;
    if (holds(middle)) {
      used = middle;
    } else {
      most = middle - 1;
    }
  }
  return used;
}

}  // namespace

Occupancy occupancy(const GpuSpec& gpu, int threads, int registers, std::int64_t shared_bytes) {
  if (threads < 1 || threads > kMostThreads) return {0, Limit::warps, 0};
  if (registers < 0) return {0, Limit::registers, 0};
  if (shared_bytes < 0) return {0, Limit::shared_memory, 0};
  const int warps = (threads + kWarp - 1) / kWarp;
  Occupancy result{gpu.max_threads_per_sm / kWarp / warps, Limit::warps, 0};
  const auto limit = [&](int blocks, Limit reason) {
    if (blocks < result.blocks) result = {blocks, reason, 0};
  };
  limit(gpu.max_blocks_per_sm, Limit::blocks);
  limit(blocks_by_registers(gpu, warps, registers), Limit::registers);
  limit(blocks_by_shared_memory(gpu, shared_bytes), Limit::shared_memory);
  result.warps = result.blocks * warps;
  return result;
}

Slack slack(const GpuSpec& gpu, int threads, int registers, std::int64_t shared_bytes, int blocks) {
  const auto holds = [&](int of_registers, std::int64_t bytes) {
    return occupancy(gpu, threads, of_registers, bytes).blocks >= blocks;
  };
  if (blocks < 1 || !holds(registers, shared_bytes)) return {};
  // Each limit is on its own, so what leaves the blocks apart leaves them together.
  const int most_registers =
      largest(registers, kMostRegisters, [&](int more) { return holds(more, shared_bytes); });
  const auto most_bytes =
      largest<std::int64_t>(shared_bytes, gpu.shared_bytes_per_block,
                            [&](std::int64_t more) { return holds(registers, more); });
  return {most_registers - registers, most_bytes - shared_bytes};
}

}  // namespace vqgen
