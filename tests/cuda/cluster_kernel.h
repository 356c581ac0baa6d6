// Clusters of 4 blocks, as text for both machines, with input and the check of the output. The text
// follows struct Args { const vq::u32* in; vq::u32* out; }.
//
// Twice, each thread of a block stores one of 64 words of `in`. Then 16 threads each add up a quad
// of every block of the cluster, block b's times b + 1, and their previous sum.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/plan/kernel_source.h"

namespace vqgen::test {

inline constexpr unsigned kClusterThreads = 64, kClusterBlocks = 4;
inline constexpr std::int64_t kClusterSharedBytes = 256;
inline constexpr Dim3 kClusterGrid{2, 1, 2 * kClusterBlocks};
inline constexpr std::size_t kClusterWords = std::size_t{16} * 64;  // in and out

inline constexpr std::string_view kClusterText = R"(
VQ_KERNEL_AHEAD_CLUSTERS(trial, 64, 4, Args) {
  vq::after_last_launch();
  const int t = vq::thread_index();
  const int block = vq::block_z() * 2 + vq::block_x();
  vq::u32* const words = reinterpret_cast<vq::u32*>(vq::shared_memory());
  vq::U32x4 sum{};
  for (int round = 0; round < 2; ++round) {
    if (round > 0) vq::sync_cluster();
    vq::store_shared(words + t, vq::load_global(args.in + block * 64 + t) + round);
    vq::sync_cluster();
    for (vq::u32 peer = 0; t < 16 && peer < 4; ++peer) {
      const vq::U32x4 quad =
          vq::load_peer(reinterpret_cast<const vq::U32x4*>(words) + t, static_cast<int>(peer));
      sum = {sum.x + (peer + 1) * quad.x, sum.y + (peer + 1) * quad.y,
             sum.z + (peer + 1) * quad.z, sum.w + (peer + 1) * quad.w};
    }
  }
  if (t < 16) vq::store_global(reinterpret_cast<vq::U32x4*>(args.out) + block * 16 + t, sum);
  vq::leave_cluster();
}
)";

inline std::vector<std::uint32_t> cluster_in() {
  std::vector<std::uint32_t> in(kClusterWords);
  for (std::uint32_t i = 0; i < in.size(); ++i) in[i] = i * 2654435761u;
  return in;
}

inline void judge_cluster(const std::vector<std::uint32_t>& out) {
  ASSERT_EQ(out.size(), kClusterWords);
  const std::vector<std::uint32_t> in = cluster_in();
  for (std::uint32_t i = 0; i < out.size(); ++i) {
    const std::uint32_t block = i / 64, x = block % 2, first = block / 2 / kClusterBlocks * 4;
    std::uint32_t sum = 0;
    for (std::uint32_t peer = 0; peer < kClusterBlocks; ++peer) {
      const std::uint32_t word = in[((first + peer) * 2 + x) * 64 + i % 64];
      sum += (peer + 1) * (2 * word + 1);
    }
    EXPECT_EQ(out[i], sum) << i;
  }
}

}  // namespace vqgen::test
