// Occupancy: how many blocks an SM holds, and the resource slack, which is what each could use
// besides without lowering that number (VQ-LLM, section V-B and Fig. 10) and what the codebook
// cache may spend. The rules are those of NVIDIA's cuda_occupancy.h, without a preferred carve-out
// (the driver takes the largest) and without the barrier limit.
#pragma once

#include <array>
#include <cstdint>

#include "core/gpu/gpu_spec.h"

namespace vqgen {

// What keeps one more block out: the first if several do. Limits that a smaller codebook cache
// cannot lower come first.
enum class Limit { warps, blocks, registers, shared_memory };
template <>
inline constexpr auto enum_names<Limit> =
    std::array{"warps", "blocks", "registers", "shared memory"};

struct Occupancy {
  int blocks = 0;  // an SM; 0 where not even one can run
  Limit limit = Limit::warps;
  int warps = 0;  // of those blocks
  bool operator==(const Occupancy&) const = default;
};

// Blocks of `threads` threads with `registers` registers each and `shared_bytes` bytes, static and
// dynamic. What no kernel can have (threads outside 1..1024, registers outside 0..255, a negative
// size, more shared memory than a block may have) gives 0 blocks.
Occupancy occupancy(const GpuSpec& gpu, int threads, int registers, std::int64_t shared_bytes);

struct Slack {
  int registers = 0;              // more per thread
  std::int64_t shared_bytes = 0;  // more per block
  bool operator==(const Slack&) const = default;
};

// The most that can be spent, of both at once, with `blocks` resident, which may be fewer than
// could be: a grid may not have more for an SM. Nothing where not even these are resident.
Slack slack(const GpuSpec& gpu, int threads, int registers, std::int64_t shared_bytes, int blocks);

}  // namespace vqgen
