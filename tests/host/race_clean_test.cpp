// Right kernels under the race checker: no report, and the same result as without it.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/host/trial.h"

namespace vqgen::host_test {
namespace {

Trial race_free(const std::string& body) {
  Trial trial;
  trial.text =
      "VQ_KERNEL(trial, 64, Args) { int t = vq::thread_index(); "
      "vq::u32* row = reinterpret_cast<vq::u32*>(vq::shared_memory());\n" +
      body + "}";
  trial.shared_bytes = 1024;
  trial.in.resize(512);
  std::iota(trial.in.begin(), trial.in.end(), 1u);
  return trial;
}

void expect_clean(const Trial& trial) {
  const std::vector<std::uint32_t> expected = run(trial);
  for (const HostOptions& options : all_orders(true)) EXPECT_EQ(run(trial, options), expected);
}

TEST(RaceFree, StagingWithBarriers) {
  expect_clean(race_free(R"(for (int turn = 0; turn < 3; ++turn) {
      vq::store_shared(row + t, vq::load_global(args.in + t + turn));
      vq::sync_block();
      const vq::u32 word = vq::load_shared(row + 63 - t);
      vq::sync_block();
      if (turn == 2) vq::store_global(args.out + t, word);
    })"));
}

TEST(RaceFree, DoubleBufferOfCopies) {
  expect_clean(race_free(R"(vq::u32 sum = 0;
    vq::copy_async(row + t, args.in + t);
    vq::copy_async_commit();
    for (int tile = 0; tile < 6; ++tile) {
      if (tile < 5) vq::copy_async(row + (tile + 1) % 2 * 64 + t, args.in + tile * 64 + 64 + t);
      vq::copy_async_commit();
      vq::copy_async_wait<1>();
      vq::sync_block();
      sum += vq::load_shared(row + tile % 2 * 64 + 63 - t);
      vq::sync_block();
    }
    vq::store_global(args.out + t, sum);)"));
}

TEST(RaceFree, TwoBuffersAndOneBarrierATurn) {
  expect_clean(race_free(R"(vq::u32 sum = 0;
    for (int turn = 0; turn < 6; ++turn) {
      vq::u32* buffer = row + turn % 2 * 64;
      vq::store_shared(buffer + t, vq::u32(turn * t));
      vq::sync_block();
      sum += vq::load_shared(buffer + (t + 33) % 64);
    }
    vq::store_global(args.out + t, sum);)"));
}

TEST(RaceFree, OwnCopyIsReadAfterItsWait) {
  expect_clean(race_free(R"(vq::copy_async(row + t, args.in + t);
    vq::copy_async_commit();
    vq::copy_async_wait<0>();
    vq::u32 word = vq::load_shared(row + t);
    vq::sync_warp();
    word += vq::load_shared(row + (t ^ 1));
    vq::store_global(args.out + t, word);)"));
}

TEST(RaceFree, ReductionByShuffles) {
  expect_clean(race_free(R"(vq::u32 sum = vq::load_global(args.in + t);
    for (int mask = 16; mask > 0; mask /= 2) sum += vq::shuffle_xor(sum, mask);
    if (vq::lane() == 0) vq::store_shared(row + vq::warp(), sum);
    vq::sync_block();
    vq::store_global(args.out + t, vq::load_shared(row) + vq::load_shared(row + 1));)"));
}

TEST(RaceFree, ExchangeWithinEachWarp) {
  expect_clean(race_free(R"(vq::u32 word = t;
    for (int turn = 0; turn < 2 + vq::warp(); ++turn) {
      vq::store_shared(row + t, word);
      vq::sync_warp();
      word += vq::load_shared(row + (t ^ 5));
      vq::sync_warp();
    }
    vq::store_global(args.out + t, word);)"));
}

TEST(RaceFree, AThreadsOwnWords) {
  expect_clean(race_free(R"(vq::u16* halves = reinterpret_cast<vq::u16*>(row);
    for (int turn = 0; turn < 3; ++turn) {
      vq::store_shared(halves + 2 * t, vq::u16(turn));
      vq::store_shared(halves + 2 * t + 1, vq::u16(t));
      vq::store_shared(row + t, vq::load_shared(row + t) + 1);
      vq::store_global(args.out + t, vq::load_shared(row + t));
    })"));
}

TEST(RaceFree, NeighbouringHalvesOfOneWord) {
  Trial trial = race_free(R"(vq::u16* halves = reinterpret_cast<vq::u16*>(row);
    vq::store_shared(halves + t, vq::u16(t));
    vq::sync_block();
    vq::u16* out = reinterpret_cast<vq::u16*>(args.out);
    vq::store_global(out + t, vq::load_shared(halves + 63 - t));)");
  trial.out_words = 32;
  expect_clean(trial);
}

TEST(RaceFree, AdditionsOfAllThreads) {
  expect_clean(race_free(R"(for (int turn = 0; turn < 4; ++turn) {
      if (t == turn * 20) vq::store_shared(row, vq::u32(turn));
      vq::sync_block();
      vq::add_shared(row, vq::u32(t));
      vq::sync_block();
      vq::store_global(args.out + t, vq::load_shared(row));
      vq::sync_block();
    })"));
}

TEST(RaceFree, AllReadOneWordThatOneThreadWrites) {
  expect_clean(race_free(R"(for (int turn = 0; turn < 4; ++turn) {
      if (t == turn * 20) vq::store_shared(row, vq::u32(turn));
      vq::sync_block();
      vq::store_global(args.out + t, vq::load_shared(row));
      vq::sync_block();
    })"));
}

TEST(RaceFree, BlocksAndLaunchesStartAfresh) {
  Trial trial = race_free(R"(vq::store_shared(row + t, vq::u32(t));
    vq::sync_block();
    vq::store_global(args.out + vq::block_x() * 64 + t, vq::load_shared(row + 63 - t));
    vq::copy_async(row + 64 + t, args.in + t);)");  // in flight to the end
  trial.grid = {5, 1, 1};
  trial.out_words = 320;
  expect_clean(trial);

  // The next launch may load what one launch stores, and store there again.
  const std::unique_ptr<Backend> backend = make_host_backend({.check_races = true});
  const KernelSource source = source_of(
      race_free("vq::store_global(args.out + t, vq::load_global(args.in + 63 - t) + 1);"));
  const auto kernel = backend->load(backend->compile(source), source);
  const DeviceBuffer a(*backend, 256);
  const DeviceBuffer b(*backend, 256);
  for (int turn = 0; turn < 4; ++turn) {
    const std::vector<void*> args =
        turn % 2 == 0 ? std::vector{a.data(), b.data()} : std::vector{b.data(), a.data()};
    EXPECT_NO_THROW(backend->launch(*kernel, source, 0, std::as_bytes(std::span(args))));
  }
}

}  // namespace
}  // namespace vqgen::host_test
