// Bulk copies through two buffers of shared memory, as text for both machines, with input and the
// check of the output. The text follows struct Args { const vq::u32* in; vq::u32* out; }.
//
// Two warps sum 6 rounds of 64 words, one word per thread and round, which arrive in the buffers by
// turns. The last warp to read a buffer requests its next round.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

namespace vqgen::test {

inline constexpr std::size_t kBulkIn = std::size_t{6} * 64, kBulkOut = 64;
inline constexpr unsigned kBulkThreads = 64;
inline constexpr std::int64_t kBulkSharedBytes = 544;

inline constexpr std::string_view kBulkText = R"(
VQ_DEVICE vq::u64* barrier(int place) {
  return reinterpret_cast<vq::u64*>(vq::shared_memory() + 512) + place;
}
VQ_DEVICE vq::u32* readers(int place) {
  return reinterpret_cast<vq::u32*>(vq::shared_memory() + 528) + place;
}
VQ_DEVICE void ask(const Args& args, int round) {
  const int place = round % 2;
  vq::bulk_barrier_expect(barrier(place), 256);
  vq::copy_bulk(vq::shared_memory() + place * 256,
                reinterpret_cast<const vq::u8*>(args.in + round * 64), 128, barrier(place));
  vq::copy_bulk(vq::shared_memory() + place * 256 + 128,
                reinterpret_cast<const vq::u8*>(args.in + round * 64 + 32), 128, barrier(place));
}
VQ_KERNEL(trial, 64, Args) {
  const int t = vq::thread_index();
  if (t == 0) {
    for (int place = 0; place < 2; ++place) {
      vq::bulk_barrier_begin(barrier(place));
      vq::store_shared(readers(place), 0u);
    }
    ask(args, 0);
    ask(args, 1);
  }
  vq::sync_block();
  vq::u32 sum = 0;
  for (int round = 0; round < 6; ++round) {
    const int place = round % 2;
    vq::bulk_barrier_wait(barrier(place), round / 2 % 2);
    sum += vq::load_shared(reinterpret_cast<vq::u32*>(vq::shared_memory()) + place * 64 + t);
    if (round + 2 >= 6) continue;
    vq::sync_warp();
    if (t % 32 == 0 && vq::count_shared(readers(place), 1) == 1) ask(args, round + 2);
  }
  vq::store_global(args.out + t, sum);
}
)";

// Computes the same sums with a producer warp: it signals each round that is in a buffer, and waits
// until both consumers have signalled that they read the previous one.
inline constexpr unsigned kMadeThreads = 96;
inline constexpr std::string_view kMadeText = R"(
VQ_DEVICE vq::u64* made(int place) {
  return reinterpret_cast<vq::u64*>(vq::shared_memory() + 512 + place * 8);
}
VQ_DEVICE vq::u64* read(int place) {
  return reinterpret_cast<vq::u64*>(vq::shared_memory() + 528 + place * 8);
}
VQ_DEVICE vq::u32* word(int place, int number) {
  return reinterpret_cast<vq::u32*>(vq::shared_memory()) + place * 64 + number;
}
VQ_KERNEL(trial, 96, Args) {
  const int t = vq::thread_index();
  if (t == 0) {
    for (int place = 0; place < 2; ++place) {
      vq::bulk_barrier_begin(made(place));
      vq::bulk_barrier_begin(read(place), 2);
    }
  }
  vq::sync_block();
  vq::u32 sum = 0;
  for (int round = 0; round < 6; ++round) {
    const int place = round % 2;
    const vq::u32 parity = round / 2 % 2;
    if (t >= 64) {
      if (round >= 2) vq::bulk_barrier_wait(read(place), parity ^ 1u);
      for (int i = t - 64; i < 64; i += 32) {
        vq::store_shared(word(place, i), vq::load_global(args.in + round * 64 + i));
      }
      vq::sync_warp();  // of the maker
      if (t == 64) vq::bulk_barrier_arrive(made(place));
    } else {
      vq::bulk_barrier_wait(made(place), parity);
      sum += vq::load_shared(word(place, t));
      vq::sync_warp();  // of a reader
      if (t % 32 == 0) vq::bulk_barrier_arrive(read(place));
    }
  }
  if (t < 64) vq::store_global(args.out + t, sum);
}
)";

inline std::vector<std::uint32_t> bulk_in() {
  std::vector<std::uint32_t> in(kBulkIn);
  std::iota(in.begin(), in.end(), 1u);
  return in;
}

inline void judge_bulk(const std::vector<std::uint32_t>& out) {
  ASSERT_EQ(out.size(), kBulkOut);
  for (std::uint32_t t = 0; t < kBulkOut; ++t) EXPECT_EQ(out[t], 6 * (t + 1) + 15 * 64) << t;
}

}  // namespace vqgen::test
