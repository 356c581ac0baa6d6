// Consecutive launches on a stream, each of which reads what the previous one stored, on GPUs that
// may start the next before the previous ends.
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/gpu/gpu_arch.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "tests/cuda/amalgamate.h"
#include "tests/message_of.h"

namespace vqgen {
namespace {

constexpr int kBlocks = 8;
constexpr std::size_t kWords = kBlocks * 64;
constexpr std::uint32_t kLaunches = 60;

struct NextArgs {
  const std::uint32_t* in;
  std::uint32_t* out;
  std::uint32_t* slow;
};

// Adds 1 to the word that another block of the previous launch stored, after a fifth of a
// millisecond of arithmetic, so that launches queue up. `head` is the macro, `early` loads before
// the wait and `late` after it.
std::string next_kernel(const std::string& head, const std::string& early,
                        const std::string& late) {
  return "struct NextArgs { const vq::u32* in; vq::u32* out; vq::u32* slow; };\n" + head +
         "(vq_next, 64, NextArgs) {\n"
         "  const int at = vq::block_x() * 64 + vq::thread_index();\n"
         "  const vq::u32* const from = args.in + (at + 64) % " +
         std::to_string(kWords) + ";\n" + early + late +
         "  vq::u32 slow = word + 1u;\n"
         "  for (int i = 0; i < 20000; ++i) {\n"  // no compiler has a short cut through xorshift
         "    slow ^= slow << 13, slow ^= slow >> 17, slow ^= slow << 5;\n"
         "  }\n"
         "  vq::store_global(args.slow + at, slow);\n"
         "  vq::store_global(args.out + at, word + (slow == 0u ? 2u : 1u));\n"
         "}\n";
}

// The words after kLaunches launches on zeros.
std::vector<std::uint32_t> run_chain(Backend& backend, const std::string& text) {
  KernelSource source = test::one_kernel(text.c_str(), "vq_next", backend.device().value().arch, 64,
                                         0, sizeof(NextArgs));
  source.entries[0].grid = {kBlocks, 1, 1};
  const auto kernel = backend.load(backend.compile(source), source);
  const DeviceBuffer words[2] = {DeviceBuffer(backend, kWords * 4),
                                 DeviceBuffer(backend, kWords * 4)};
  const DeviceBuffer slow(backend, kWords * 4);
  std::vector<std::uint32_t> values(kWords, 0u);
  for (const DeviceBuffer& each : words) {
    backend.upload(each.data(), std::as_bytes(std::span(values)));
  }
  for (std::uint32_t i = 0; i < kLaunches; ++i) {
    const NextArgs args{static_cast<const std::uint32_t*>(words[i % 2].data()),
                        static_cast<std::uint32_t*>(words[(i + 1) % 2].data()),
                        static_cast<std::uint32_t*>(slow.data())};
    backend.launch(*kernel, source, 0, std::as_bytes(std::span(&args, 1)));
  }
  backend.synchronize();
  backend.download(std::as_writable_bytes(std::span(values)), words[kLaunches % 2].data());
  return values;
}

const std::vector<std::uint32_t> kExpected(kWords, kLaunches);
const std::string kWait = "  vq::after_last_launch();\n";
const std::string kLoad = "  const vq::u32 word = vq::load_global(from);\n";

class LaunchOrderOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto spec = backend_->device();
    if (!spec) GTEST_SKIP() << device_error([&] { backend_->allocate(16); });
  }
  std::unique_ptr<Backend> backend_ = make_cuda_backend();
};

TEST_F(LaunchOrderOnDevice, EachSeesAllThatTheLastStored) {
  EXPECT_EQ(run_chain(*backend_, next_kernel("VQ_KERNEL", "", kLoad)), kExpected);
  EXPECT_EQ(run_chain(*backend_, next_kernel("VQ_KERNEL_AHEAD", kWait, kLoad)), kExpected);
  EXPECT_EQ(run_chain(*backend_, next_kernel("VQ_KERNEL_ENDS_FIRST", "", kLoad)), kExpected);
}

// A seeded bug, a load before the wait, gives wrong results if launches overlap. This shows that
// they do and that the test above would detect it.
TEST_F(LaunchOrderOnDevice, ALoadBeforeTheWaitIsWrongWhereLaunchesOverlap) {
  const std::string text = next_kernel("VQ_KERNEL_AHEAD", kLoad, kWait);
  EXPECT_EQ(run_chain(*make_cuda_backend({.nvrtc_path = "", .dependent_launches = false}), text),
            kExpected);
  if (arch_number(backend_->device().value().arch) < 90) {
    GTEST_SKIP() << "launches of " << backend_->device()->name << " do not overlap";
  }
  // Tools that make launches wait for each other hide the bug.
  for (const char* tool : {"CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH"}) {
    if (std::getenv(tool) != nullptr) GTEST_SKIP() << tool << " is set";
  }
  bool seen = false;
  for (int turn = 0; turn < 10 && !seen; ++turn) seen = run_chain(*backend_, text) != kExpected;
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace vqgen
