// Right kernels: equal bits in every lane order and with several workers.
#include <gtest/gtest.h>

#include <bit>
#include <numeric>

#include "tests/host/trial.h"

namespace vqgen::host_test {
namespace {

std::vector<std::uint32_t> counted(std::size_t count) {
  std::vector<std::uint32_t> out(count);
  std::iota(out.begin(), out.end(), 1u);
  return out;
}

void expect_everywhere(const Trial& trial, const std::vector<std::uint32_t>& expected) {
  for (const HostOptions& options : all_orders()) {
    EXPECT_EQ(run(trial, options), expected)
        << "order " << static_cast<int>(options.order) << " seed " << options.seed;
  }
}

TEST(Execution, IndicesNameEveryThreadOfEveryBlock) {
  Trial trial;
  trial.text = R"(VQ_KERNEL(trial, 40, Args) {
    int block = (vq::block_z() * 2 + vq::block_y()) * 3 + vq::block_x();
    int thread = vq::warp() * 32 + vq::lane();
    vq::u32 value = thread == vq::thread_index() ? block * 40 + thread : 0xdead;
    vq::store_global(args.out + block * 40 + thread, value);
  })";
  trial.threads = 40;
  trial.grid = {3, 2, 4};
  trial.out_words = 24 * 40;
  std::vector<std::uint32_t> expected(trial.out_words);
  std::iota(expected.begin(), expected.end(), 0u);
  expect_everywhere(trial, expected);
}

TEST(Execution, BlockBarrierPublishesSharedMemory) {
  Trial trial;
  trial.text = R"(VQ_KERNEL(trial, 96, Args) {
    vq::u32* row = reinterpret_cast<vq::u32*>(vq::shared_memory());
    int t = vq::thread_index();
    vq::store_shared(row + t, vq::load_global(args.in + t));
    for (int step = 0; step < 5; ++step) {
      vq::sync_block();
      vq::u32 next = vq::load_shared(row + (t + 1) % 96);
      vq::sync_block();
      vq::store_shared(row + t, next);
    }
    vq::store_global(args.out + t, vq::load_shared(row + t));
  })";
  trial.threads = 96;
  trial.shared_bytes = 96 * 4;
  trial.in = counted(96);
  trial.out_words = 96;
  std::vector<std::uint32_t> expected(96);
  for (std::size_t t = 0; t < 96; ++t) expected[t] = trial.in[(t + 5) % 96];
  expect_everywhere(trial, expected);
}

TEST(Execution, ShufflesReduceAWarpInEveryLane) {
  Trial trial;
  trial.text = R"(VQ_KERNEL(trial, 64, Args) {
    int t = vq::thread_index();
    float sum = vq::load_global(args.in + t);
    vq::u32 most = vq::load_global(args.in + t);
    for (int mask = 16; mask > 0; mask /= 2) {
      sum += vq::shuffle_xor(sum, mask);
      vq::u32 other = vq::shuffle_xor(most, mask);
      most = other > most ? other : most;
    }
    vq::store_global(args.out + t, static_cast<vq::u32>(sum) * 1000 + most);
  })";
  trial.in = counted(64);
  std::vector<std::uint32_t> expected(64);
  for (std::size_t t = 0; t < 64; ++t) expected[t] = t < 32 ? 528 * 1000 + 32 : 1552 * 1000 + 64;
  expect_everywhere(trial, expected);
}

TEST(Execution, WarpBarrierNeedsItsWarpOnly) {
  Trial trial;  // warp 1 takes more steps than warp 0; the last warp has 8 lanes
  trial.text = R"(VQ_KERNEL(trial, 72, Args) {
    vq::u32* row = reinterpret_cast<vq::u32*>(vq::shared_memory()) + vq::warp() * 32;
    int lanes = vq::warp() == 2 ? 8 : 32;
    vq::u32 value = vq::thread_index();
    for (int step = 0; step < 1 + vq::warp(); ++step) {
      vq::store_shared(row + vq::lane(), value);
      vq::sync_warp();
      value = vq::load_shared(row + (vq::lane() + 1) % lanes);
      vq::sync_warp();
    }
    vq::sync_block();
    vq::store_global(args.out + vq::thread_index(), value);
  })";
  trial.threads = 72;
  trial.shared_bytes = 96 * 4;
  trial.out_words = 72;
  std::vector<std::uint32_t> expected(72);
  for (std::uint32_t t = 0; t < 72; ++t) {
    const std::uint32_t warp = t / 32;
    expected[t] = warp * 32 + (t % 32 + 1 + warp) % (warp == 2 ? 8 : 32);
  }
  expect_everywhere(trial, expected);
}

TEST(Execution, AsynchronousCopiesLandGroupByGroup) {
  Trial trial;  // two stages in flight
  trial.text = R"(
  VQ_DEVICE void stage(vq::u32* row, const vq::u32* in, int tile) {
    int t = vq::thread_index();
    if (tile < 6) vq::copy_async(row + tile % 2 * 64 + t, in + tile * 64 + t);
    vq::copy_async_commit();
  }
  VQ_KERNEL(trial, 64, Args) {
    vq::u32* row = reinterpret_cast<vq::u32*>(vq::shared_memory());
    vq::u32 sum = 0;
    stage(row, args.in, 0);
    for (int tile = 0; tile < 6; ++tile) {
      stage(row, args.in, tile + 1);
      vq::copy_async_wait<1>();
      vq::sync_block();
      sum += vq::load_shared(row + tile % 2 * 64 + 63 - vq::thread_index());
      vq::sync_block();
    }
    vq::store_global(args.out + vq::thread_index(), sum);
  })";
  trial.shared_bytes = 2 * 64 * 4;
  trial.in = counted(6 * 64);
  std::vector<std::uint32_t> expected(64);
  for (std::uint32_t t = 0; t < 64; ++t) expected[t] = 6 * (64 - t) + 64 * 15;
  expect_everywhere(trial, expected);
}

TEST(Execution, CopiesAreOfOneTwoOrFourWords) {
  Trial trial;
  trial.text = R"(VQ_KERNEL(trial, 8, Args) {
    const int t = vq::thread_index();
    vq::u32* row = reinterpret_cast<vq::u32*>(vq::shared_memory());
    vq::copy_async(reinterpret_cast<vq::U32x4*>(row) + t,
                   reinterpret_cast<const vq::U32x4*>(args.in) + t);
    vq::copy_async(reinterpret_cast<vq::U32x2*>(row + 32) + t,
                   reinterpret_cast<const vq::U32x2*>(args.in) + t);
    vq::copy_async(row + 48 + t, args.in + t);
    vq::copy_async_commit();
    vq::copy_async_wait<0>();
    vq::sync_block();
    for (int i = 7 - t; i < 56; i += 8) vq::store_global(args.out + i, vq::load_shared(row + i));
  })";
  trial.threads = 8;
  trial.shared_bytes = 56 * 4;
  trial.in = counted(32);
  trial.out_words = 56;
  std::vector<std::uint32_t> expected(56);
  for (std::uint32_t i = 0; i < 56; ++i) {
    expected[i] = 1 + (i < 32 ? i : i < 48 ? i - 32 : i - 48);
  }
  expect_everywhere(trial, expected);
}

TEST(Execution, WordsMoveAsAnyType) {
  Trial trial;
  trial.text = R"(VQ_KERNEL(trial, 8, Args) {
    int t = vq::thread_index();
    vq::U32x4* quads = reinterpret_cast<vq::U32x4*>(vq::shared_memory());
    vq::store_shared(quads + t, vq::load_global(reinterpret_cast<const vq::U32x4*>(args.in) + t));
    vq::sync_block();
    const vq::U32x2 pair = vq::load_shared(reinterpret_cast<const vq::U32x2*>(quads) + 2 * t + 1);
    const float word = vq::load_shared(reinterpret_cast<const float*>(quads) + 4 * t);
    const vq::u16 half = vq::load_shared(reinterpret_cast<const vq::u16*>(quads) + 8 * t + 2);
    vq::store_global(reinterpret_cast<vq::U32x2*>(args.out) + 2 * t, pair);
    vq::store_global(reinterpret_cast<float*>(args.out) + 4 * t + 2, word);
    vq::store_global(reinterpret_cast<vq::i32*>(args.out) + 4 * t + 3, -static_cast<int>(half));
  })";
  trial.threads = 8;
  trial.shared_bytes = 128;
  trial.in = counted(32);
  trial.out_words = 32;
  std::vector<std::uint32_t> expected(32);
  for (std::uint32_t t = 0; t < 8; ++t) {
    const std::uint32_t first = 4 * t + 1;
    const std::uint32_t row[] = {first + 2, first + 3, first, 0u - (first + 1)};
    for (std::size_t i = 0; i < 4; ++i) expected[4 * t + i] = row[i];
  }
  expect_everywhere(trial, expected);
}

TEST(Execution, ExponentialsAtTheirEdges) {
  Trial trial;
  trial.text = R"(VQ_KERNEL(trial, 4, Args) {
    float result[] = {vq::exp2_approx(-vq::infinity()), vq::exp2_approx(3.0f),
                      vq::log2_approx(0.0f), vq::log2_approx(32.0f)};
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i == vq::thread_index()) vq::store_global((float*)args.out + i, result[i]);
    }
  })";
  trial.threads = 4;
  trial.out_words = 4;
  expect_everywhere(trial, {0, std::bit_cast<std::uint32_t>(8.0f), 0xff800000u,
                            std::bit_cast<std::uint32_t>(5.0f)});
}

TEST(Execution, EntriesOfOneTextRunInOrder) {
  Trial trial;
  trial.text = R"(
  VQ_KERNEL(first, 32, Args) { vq::store_global(args.out + vq::thread_index(), 7u); }
  VQ_KERNEL(second, 1, Args) {
    vq::u32 sum = 0;
    for (int i = 0; i < 32; ++i) sum += vq::load_global(args.out + i);
    vq::store_global(args.out, sum);
  })";
  KernelSource source = source_of(trial);
  source.entries = {{"first", {}, 32, 0}, {"second", {}, 1, 0}};
  const std::unique_ptr<Backend> backend = make_host_backend();
  const Artifact artifact = backend->compile(source);
  ASSERT_EQ(artifact.kernels.size(), 2u);
  EXPECT_EQ(artifact.kernels[1].name, "second");
  EXPECT_GT(artifact.compile_ms, 0);
  const std::unique_ptr<LoadedKernel> kernel = backend->load(artifact, source);
  const DeviceBuffer out(*backend, 128);
  const std::vector<void*> args = {nullptr, out.data()};
  backend->launch(*kernel, source, 0, std::as_bytes(std::span(args)));
  backend->launch(*kernel, source, 1, std::as_bytes(std::span(args)));
  backend->synchronize();
  std::uint32_t sum = 0;
  backend->download(std::as_writable_bytes(std::span(&sum, 1)), out.data());
  EXPECT_EQ(sum, 224u);
}

TEST(Execution, LoadedVariantsDoNotShareState) {
  Trial seven;
  seven.text = R"(template <class T> struct Holder { static inline T value = 7; };
  VQ_KERNEL(trial, 64, Args) {
    vq::store_global(args.out + vq::thread_index(), Holder<vq::u32>::value); })";
  Trial eight = seven;
  eight.text.replace(eight.text.find('7'), 1, "8");
  EXPECT_EQ(run(seven)[0], 7u);
  EXPECT_EQ(run(eight)[0], 8u);

  const std::unique_ptr<Backend> backend = make_host_backend();
  const KernelSource sources[] = {source_of(seven), source_of(eight)};
  std::vector<std::unique_ptr<LoadedKernel>> kernels;
  for (const KernelSource& source : sources) {
    kernels.push_back(backend->load(backend->compile(source), source));
  }
  const DeviceBuffer out(*backend, 256);
  const std::vector<void*> args = {nullptr, out.data()};
  for (std::size_t i = 0; i < 2; ++i) {
    backend->launch(*kernels[i], sources[i], 0, std::as_bytes(std::span(args)));
    std::uint32_t first = 0;
    backend->download(std::as_writable_bytes(std::span(&first, 1)), out.data());
    EXPECT_EQ(first, 7 + i);
  }
}

}  // namespace
}  // namespace vqgen::host_test
