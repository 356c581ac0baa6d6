// Occupancy against known cases and against a naive SM that gets block after block; slack by its
// definition, over all registers and all granules.
#include "heuristics/occupancy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/profiles.h"

namespace vqgen {
namespace {

// With as many resident blocks as possible.
Slack slack_at_most(const GpuSpec& gpu, int threads, int registers, std::int64_t bytes) {
  return slack(gpu, threads, registers, bytes, occupancy(gpu, threads, registers, bytes).blocks);
}

struct Known {
  const char* gpu;
  int threads;
  int registers;
  std::int64_t shared_bytes;
  Occupancy expected;
};

// Computed by NVIDIA's cuda_occupancy.h of CUDA 13.0 from the properties of these GPUs.
const std::vector<Known> kKnown = {
    {"h200", 1024, 32, 0, {2, Limit::warps, 64}},
    {"h200", 32, 32, 0, {32, Limit::blocks, 32}},
    {"h200", 128, 65, 0, {7, Limit::registers, 28}},
    {"h200", 128, 64, 0, {8, Limit::registers, 32}},
    {"h200", 256, 128, 0, {2, Limit::registers, 16}},
    {"h200", 256, 255, 0, {1, Limit::registers, 8}},
    {"h200", 288, 255, 0, {0, Limit::registers, 0}},
    {"h200", 128, 32, 113 * 1024, {2, Limit::shared_memory, 8}},
    {"h200", 128, 32, 113 * 1024 + 1, {1, Limit::shared_memory, 4}},
    {"h200", 128, 32, 227 * 1024, {1, Limit::shared_memory, 4}},
    {"h200", 128, 32, 227 * 1024 + 1, {0, Limit::shared_memory, 0}},
    {"h100", 256, 64, 75 * 1024, {3, Limit::shared_memory, 24}},
    {"a100", 128, 32, 163 * 1024, {1, Limit::shared_memory, 4}},
    {"a100", 128, 40, 40 * 1024, {4, Limit::shared_memory, 16}},
    {"a100", 96, 168, 0, {4, Limit::registers, 12}},
    {"rtx4090", 256, 32, 0, {6, Limit::warps, 48}},
    {"rtx4090", 1024, 32, 0, {1, Limit::warps, 32}},
    {"rtx4090", 32, 16, 0, {24, Limit::blocks, 24}},
    {"rtx4090", 128, 48, 99 * 1024, {1, Limit::shared_memory, 4}},
    {"rtx4090", 160, 96, 0, {4, Limit::registers, 20}},
    {"t4", 256, 32, 0, {4, Limit::warps, 32}},
    {"t4", 32, 32, 0, {16, Limit::blocks, 16}},
    {"t4", 128, 128, 0, {4, Limit::registers, 16}},
    {"t4", 128, 32, 64 * 1024, {1, Limit::shared_memory, 4}},
    {"t4", 64, 32, 8193, {7, Limit::shared_memory, 14}},
    {"t4", 64, 32, 8192, {8, Limit::shared_memory, 16}},
};

TEST(Occupancy, KnownCases) {
  for (const Known& known : kKnown) {
    SCOPED_TRACE(std::string(known.gpu) + " " + std::to_string(known.threads) + " threads " +
                 std::to_string(known.registers) + " registers " +
                 std::to_string(known.shared_bytes) + " bytes");
    const Occupancy found =
        occupancy(find_gpu(known.gpu), known.threads, known.registers, known.shared_bytes);
    EXPECT_EQ(found.blocks, known.expected.blocks);
    EXPECT_EQ(enum_name(found.limit), enum_name(known.expected.limit));
    EXPECT_EQ(found.warps, known.expected.warps);
  }
}

TEST(Occupancy, WhatNoKernelHasCannotRun) {
  const GpuSpec gpu = find_gpu("h200");
  EXPECT_EQ(occupancy(gpu, 0, 32, 0), (Occupancy{0, Limit::warps, 0}));
  EXPECT_EQ(occupancy(gpu, -5, 32, 0), (Occupancy{0, Limit::warps, 0}));
  EXPECT_EQ(occupancy(gpu, 1025, 32, 0), (Occupancy{0, Limit::warps, 0}));
  EXPECT_EQ(occupancy(gpu, 32, -1, 0), (Occupancy{0, Limit::registers, 0}));
  EXPECT_EQ(occupancy(gpu, 32, 256, 0), (Occupancy{0, Limit::registers, 0}));
  EXPECT_EQ(occupancy(gpu, 32, 32, -1), (Occupancy{0, Limit::shared_memory, 0}));
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(occupancy(gpu, 32, 32, kHuge), (Occupancy{0, Limit::shared_memory, 0}));
  EXPECT_EQ(slack_at_most(gpu, 32, 32, kHuge), Slack{});
  EXPECT_EQ(slack_at_most(gpu, 0, 0, 0), Slack{});
}

// An SM that gives its resources, granule by granule, to block after block until one does not fit.
int blocks_handed_out(const GpuSpec& gpu, int threads, int registers, std::int64_t shared_bytes) {
  if (shared_bytes > gpu.shared_bytes_per_block || registers > 255) return 0;
  const auto granules = [](std::int64_t amount, int granule) {
    std::int64_t count = 0;
    for (; amount > 0; amount -= granule) ++count;
    return count;
  };
  const int warps = static_cast<int>(granules(threads, 32));
  const std::int64_t a_warp = granules(registers * 32, gpu.registers_granule);
  const std::int64_t a_block =
      granules(shared_bytes + gpu.shared_bytes_reserved, gpu.shared_bytes_granule);
  const auto parts = static_cast<std::size_t>(gpu.sm_partitions);
  const std::int64_t all = gpu.registers_per_sm / gpu.registers_granule;
  // A block is admitted only if each partition could hold as many of its warps as any other.
  if (granules(warps, gpu.sm_partitions) * gpu.sm_partitions * a_warp > all) return 0;
  std::vector<std::int64_t> free_registers(parts, all / gpu.sm_partitions);
  std::int64_t free_shared = gpu.shared_bytes_per_sm / gpu.shared_bytes_granule;
  int free_warps = gpu.max_threads_per_sm / 32;
  for (int blocks = 0;; ++blocks) {
    free_shared -= a_block;
    free_warps -= warps;
    if (blocks == gpu.max_blocks_per_sm || free_shared < 0 || free_warps < 0) return blocks;
    for (int warp = 0; warp < warps; ++warp) {
      auto& most = *std::max_element(free_registers.begin(), free_registers.end());
      if (most < a_warp) return blocks;
      most -= a_warp;
    }
  }
}

const std::vector<std::int64_t> kShared = {0,      1,      1023,   1024,   7168,   8192,
                                           16384,  33333,  49152,  65536,  65537,  101376,
                                           101377, 115712, 166912, 200000, 232448, 232449};

TEST(Occupancy, IsWhatAnSmThatHandsOutBlocksHolds) {
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = find_gpu(name);
    for (const int threads :
         {1, 32, 33, 64, 96, 128, 160, 224, 256, 288, 384, 512, 544, 768, 1024}) {
      for (int registers = 1; registers <= 255; ++registers) {
        for (const std::int64_t bytes : kShared) {
          ASSERT_EQ(occupancy(gpu, threads, registers, bytes).blocks,
                    blocks_handed_out(gpu, threads, registers, bytes))
              << name << " " << threads << " " << registers << " " << bytes;
        }
      }
    }
  }
}

TEST(Occupancy, NeverRisesWithWhatABlockTakes) {
  const GpuSpec gpu = find_gpu("a100");
  for (int threads = 1; threads <= 1024; threads += 31) {
    for (int registers = 0; registers < 255; ++registers) {
      EXPECT_GE(occupancy(gpu, threads, registers, 5000).blocks,
                occupancy(gpu, threads, registers + 1, 5000).blocks);
    }
    for (std::int64_t bytes = 0; bytes < gpu.shared_bytes_per_block; bytes += 127) {
      EXPECT_GE(occupancy(gpu, threads, 40, bytes).blocks,
                occupancy(gpu, threads, 40, bytes + 127).blocks);
    }
  }
}

// Spending the slack keeps the blocks, also both kinds at once. One granule more (8 registers per
// thread, 128 or 256 bytes per block) loses a block, unless it reaches a thread's or a block's
// limit.
void expect_slack_is_tight(const GpuSpec& gpu, int threads, int registers, std::int64_t bytes) {
  const int blocks = occupancy(gpu, threads, registers, bytes).blocks;
  const Slack spare = slack_at_most(gpu, threads, registers, bytes);
  if (blocks == 0) {
    ASSERT_EQ(spare, Slack{});
    return;
  }
  ASSERT_GE(spare.registers, 0);
  ASSERT_GE(spare.shared_bytes, 0);
  const int most_registers = registers + spare.registers;
  const std::int64_t most_bytes = bytes + spare.shared_bytes;
  ASSERT_LE(most_registers, 255);
  ASSERT_LE(most_bytes, gpu.shared_bytes_per_block);
  ASSERT_EQ(occupancy(gpu, threads, most_registers, most_bytes).blocks, blocks);
  if (most_registers < 255) {
    ASSERT_EQ(most_registers % (gpu.registers_granule / 32), 0);
    ASSERT_LT(occupancy(gpu, threads, most_registers + 1, bytes).blocks, blocks);
  }
  if (most_bytes < gpu.shared_bytes_per_block) {
    ASSERT_EQ((most_bytes + gpu.shared_bytes_reserved) % gpu.shared_bytes_granule, 0);
    ASSERT_LT(occupancy(gpu, threads, registers, most_bytes + 1).blocks, blocks);
  }
}

TEST(Slack, IsTightForAllRegistersAndOverAllOfSharedMemory) {
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = find_gpu(name);
    for (const int threads : {32, 64, 96, 128, 160, 256, 512, 1024}) {
      for (int registers = 0; registers <= 256; ++registers) {
        for (const std::int64_t bytes : {0, 20000, 50000}) {
          SCOPED_TRACE(name + " " + std::to_string(threads) + " " + std::to_string(registers));
          expect_slack_is_tight(gpu, threads, registers, bytes);
        }
      }
      for (std::int64_t bytes = 0; bytes <= gpu.shared_bytes_per_block + 200; bytes += 61) {
        SCOPED_TRACE(name + " " + std::to_string(threads) + " " + std::to_string(bytes));
        expect_slack_is_tight(gpu, threads, 40, bytes);
      }
    }
  }
}

TEST(Slack, OfAKernelByHand) {
  // 4 warps of 33 registers get 40 each: 12 blocks. A twelfth of 228 KB is 19 KB, of which 1 KB is
  // reserved.
  const GpuSpec gpu = find_gpu("h200");
  EXPECT_EQ(occupancy(gpu, 128, 33, 0), (Occupancy{12, Limit::registers, 48}));
  EXPECT_EQ(slack_at_most(gpu, 128, 33, 0), (Slack{7, 18 * 1024}));
}

TEST(Slack, ForFewerBlocksIsMore) {
  const GpuSpec gpu = find_gpu("h200");
  EXPECT_EQ(slack(gpu, 128, 33, 0, 12), slack_at_most(gpu, 128, 33, 0));
  EXPECT_EQ(slack(gpu, 128, 33, 0, 13), Slack{});
  EXPECT_EQ(slack(gpu, 128, 33, 0, 2), (Slack{255 - 33, 113 * 1024}));
  EXPECT_EQ(slack(gpu, 128, 33, 0, 0), Slack{});
}

}  // namespace
}  // namespace vqgen
