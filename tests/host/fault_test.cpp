// Must-fail kernels: one seeded bug each, and the report that finds it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/host/trial.h"

namespace vqgen::host_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint32_t kPoison = 0xffffffffu;

bool any_poison(const std::vector<std::uint32_t>& words) {
  return std::ranges::find(words, kPoison) != words.end();
}

const std::string kRow = "vq::u32* row = reinterpret_cast<vq::u32*>(vq::shared_memory());\n";

// A kernel of 64 threads and 64 words of arena, whose lines from trial.cu:2 on are `body`.
Trial trial_of(const std::string& body) {
  Trial trial;
  trial.text = "VQ_KERNEL(trial, 64, Args) { int t = vq::thread_index(); " + kRow + body + "}";
  trial.shared_bytes = 256;
  trial.in.assign(64, 5u);
  return trial;
}

TEST(Fault, MissingBlockBarrierShowsAsNan) {
  const Trial trial = trial_of(R"(vq::store_shared(row + t, 1u);
    vq::store_global(args.out + t, vq::load_shared(row + (t + 32) % 64));
  )");
  for (const HostOptions& options : all_orders()) EXPECT_TRUE(any_poison(run(trial, options)));
}

TEST(Fault, MissingWarpBarrierShowsAsNan) {
  const Trial trial = trial_of(R"(vq::store_shared(row + t, 1u);
    vq::store_global(args.out + t, vq::load_shared(row + (t ^ 1)));
  )");
  for (const HostOptions& options : all_orders()) EXPECT_TRUE(any_poison(run(trial, options)));
}

TEST(Fault, WarpBarrierInPlaceOfABlockBarrierShowsAsNan) {
  const Trial trial = trial_of(R"(vq::store_shared(row + t, 1u);
    vq::sync_warp();
    vq::store_global(args.out + t, vq::load_shared(row + (t + 32) % 64));
  )");
  EXPECT_TRUE(any_poison(run(trial, {.order = LaneOrder::forward})));
  EXPECT_TRUE(any_poison(run(trial, {.order = LaneOrder::reverse})));
}

TEST(Fault, UninitialisedSharedReadIsNan) {
  const Trial trial = trial_of("vq::store_global(args.out + t, vq::load_shared(row + t));");
  EXPECT_EQ(run(trial), std::vector(64, kPoison));
}

TEST(Fault, SharedMemoryDoesNotOutliveABlock) {
  Trial trial = trial_of(R"(if (vq::block_x() == 0) vq::store_shared(row + t, 1u);
    vq::store_global(args.out + vq::block_x() * 64 + t, vq::load_shared(row + t));
  )");
  trial.grid.x = 2;
  trial.out_words = 128;
  EXPECT_EQ(run(trial)[64], kPoison);
}

TEST(Fault, MissingCopyWaitShowsAsNan) {
  for (const char* wait : {"", "vq::copy_async_wait<1>();"}) {
    const Trial trial = trial_of(R"(vq::store_shared(row + t, 1u);
      vq::copy_async(row + t, args.in + t);
      vq::copy_async_commit();)" +
                                 std::string(wait) + R"(
      vq::sync_block();
      vq::store_global(args.out + t, vq::load_shared(row + t));
    )");
    EXPECT_EQ(run(trial), std::vector(64, kPoison)) << wait;
  }
}

TEST(Fault, MissingCopyCommitShowsAsNan) {
  const Trial trial = trial_of(R"(vq::copy_async(row + t, args.in + t);
    vq::copy_async_wait<0>();
    vq::store_global(args.out + t, vq::load_shared(row + t));
  )");
  EXPECT_EQ(run(trial), std::vector(64, kPoison));
}

TEST(Fault, OfTwoCopiesToOnePlaceTheFirstLandsLast) {
  Trial trial = trial_of(R"(vq::copy_async(row + t, args.in + t);
    vq::copy_async_commit();
    vq::copy_async(row + t, args.in + 64 + t);
    vq::copy_async_commit();
    vq::copy_async_wait<0>();
    vq::store_global(args.out + t, vq::load_shared(row + t));
  )");
  trial.in.assign(128, 1);
  std::fill(trial.in.begin() + 64, trial.in.end(), 2);
  EXPECT_EQ(run(trial), std::vector(64, 1u));
}

TEST(Fault, RefillBeforeTheReadersAreDoneShowsAsNan) {
  const Trial trial = trial_of(R"(vq::store_shared(row + t, 1u);
    vq::sync_block();
    if (t >= 32) vq::copy_async(row + t - 32, args.in + t);
    vq::store_global(args.out + t, vq::load_shared(row + t));
  )");
  EXPECT_TRUE(any_poison(run(trial, {.order = LaneOrder::reverse})));
}

TEST(Fault, DivergentBarrierNamesBothPlaces) {
  const Trial trial = trial_of(R"(
    if (t < 40) {
      vq::sync_block();
    } else {
      vq::sync_block();
    })");
  EXPECT_THAT(fault_of(trial),
              AllOf(HasSubstr("kernel trial, block (0,0,0), thread 40: divergent sync_block"),
                    HasSubstr("threads 0-39 wait at sync_block (trial.cu:4)"),
                    HasSubstr("thread 40 waits at sync_block (trial.cu:6)")));
}

TEST(Fault, ReturnBeforeABarrierNamesWhoLeft) {
  const Trial trial = trial_of("if (t == 3 || t >= 60) return;\n vq::sync_block();");
  for (const HostOptions& options : all_orders()) {
    EXPECT_THAT(fault_of(trial, options),
                AllOf(HasSubstr("block (0,0,0): threads returned before a barrier"),
                      HasSubstr("threads 0-2, 4-59 wait at sync_block (trial.cu:3)"),
                      HasSubstr("threads 3, 60-63 have returned")));
  }
}

TEST(Fault, ShuffleWithAMissingLaneIsADeadlock) {
  const Trial trial =
      trial_of("float x = t;\n if (t != 35) x = vq::shuffle_xor(x, 1);\n vq::sync_block();");
  for (const HostOptions& options : all_orders()) {
    EXPECT_THAT(fault_of(trial, options), AllOf(HasSubstr("wait at shuffle_xor (trial.cu:3)"),
                                                HasSubstr("sync_block (trial.cu:4)")));
  }
  EXPECT_THAT(fault_of(trial),
              AllOf(HasSubstr("deadlock"), HasSubstr("threads 32-34, 36-63 wait")));
}

TEST(Fault, ShuffleAfterALaneReturnedIsADeadlock) {
  const Trial trial =
      trial_of("if (t == 7) return;\n vq::store_global(args.out, vq::shuffle_xor(1u, 2));");
  EXPECT_THAT(fault_of(trial), AllOf(HasSubstr("deadlock: threads 0-6, 8-31 wait at shuffle_xor"),
                                     HasSubstr("have returned")));
}

TEST(Fault, LanesOfAWarpAtDifferentCollectives) {
  const Trial trial = trial_of(
      "if (t % 2) vq::sync_warp();\n else vq::store_global(args.out, vq::shuffle_xor(1u, 2));");
  EXPECT_THAT(fault_of(trial), AllOf(HasSubstr("divergent sync_warp (trial.cu:2)"),
                                     HasSubstr("shuffle_xor (trial.cu:3)")));
}

TEST(Fault, ShuffleBeyondTheWarp) {
  const Trial far = trial_of("vq::store_global(args.out + t, vq::shuffle_xor(1u, 32));");
  EXPECT_THAT(fault_of(far),
              HasSubstr("lane 0 of shuffle_xor (trial.cu:2) asks for lane 32, which"));
  Trial partial = far;
  partial.text = R"(VQ_KERNEL(trial, 40, Args) {
    vq::store_global(args.out + vq::thread_index(), vq::shuffle_xor(1u, 16)); })";
  partial.threads = 40;
  EXPECT_THAT(fault_of(partial), HasSubstr("lane 0 of shuffle_xor (trial.cu:2) asks for lane 16"));
}

TEST(Fault, SharedAccessOutsideTheArena) {
  EXPECT_THAT(fault_of(trial_of("vq::load_shared(row + t + 1);")),
              HasSubstr("thread 63: load_shared of 4 bytes at offset 256 of an arena of 256 bytes "
                        "(trial.cu:2)"));
  EXPECT_THAT(fault_of(trial_of("vq::store_shared(row + t - 1, 0u);")),
              HasSubstr("thread 0: store_shared of 4 bytes at offset -4 of an arena"));
  EXPECT_THAT(fault_of(trial_of("vq::copy_async(row + 2 * t, args.in);")),
              HasSubstr("thread 32: copy_async of 4 bytes at offset 256"));
  Trial none = trial_of("vq::load_shared(row);");
  none.shared_bytes = 0;
  EXPECT_THAT(fault_of(none), HasSubstr("at offset 0 of an arena of 0 bytes"));
}

TEST(Fault, MisalignedAccesses) {
  EXPECT_THAT(
      fault_of(trial_of("vq::load_shared(reinterpret_cast<vq::U32x4*>(row + 1));")),
      HasSubstr("thread 0: load_shared of 16 bytes at a misaligned address, 4 past a multiple of "
                "16 (trial.cu:2); align it to its size"));
  EXPECT_THAT(
      fault_of(trial_of("vq::load_global(reinterpret_cast<const vq::U32x2*>(args.in + 1));")),
      HasSubstr("load_global of 8 bytes at a misaligned address"));
  EXPECT_THAT(fault_of(trial_of("vq::copy_async(row, reinterpret_cast<const vq::u32*>("
                                "reinterpret_cast<const char*>(args.in) + 2));")),
              HasSubstr("copy_async of 4 bytes at a misaligned address"));
}

TEST(Fault, GlobalAccessOutsideEveryAllocation) {
  EXPECT_THAT(fault_of(trial_of("vq::store_global(args.out + t + 1, 0u);")),
              HasSubstr("thread 63: store_global of 4 bytes 0 bytes past the end of an allocation "
                        "of 256 bytes (trial.cu:2)"));
  EXPECT_THAT(fault_of(trial_of("vq::load_global(args.in + t - 2);")),
              HasSubstr("thread 0: load_global of 4 bytes 8 bytes before an allocation of 256"));
  EXPECT_THAT(fault_of(trial_of("vq::load_global(static_cast<const float*>(nullptr));")),
              HasSubstr("at a null pointer"));
  EXPECT_THAT(fault_of(trial_of("vq::load_global(row);")),
              HasSubstr("of 4 bytes in shared memory"));
}

TEST(Fault, OfTheFirstFaultyBlockForAnyNumberOfWorkers) {
  Trial trial = trial_of("if (vq::block_x() % 8 == 5) vq::load_shared(row + 64);");
  trial.grid.x = 64;
  for (const unsigned threads : {1u, 3u}) {
    EXPECT_THAT(fault_of(trial, {.threads = threads}), HasSubstr("block (5,0,0), thread 0"));
  }
}

TEST(Fault, BackendStaysUsable) {
  const std::unique_ptr<Backend> backend = make_host_backend();
  const Trial trial = trial_of(R"(vq::sync_block();
    if (vq::load_global(args.in) == 1) vq::sync_warp(); else if (t != 9) vq::sync_warp();
    vq::sync_block();
    vq::store_global(args.out + t, 3u);)");
  const KernelSource source = source_of(trial);
  const auto kernel = backend->load(backend->compile(source), source);
  const DeviceBuffer in(*backend, 4);
  const DeviceBuffer out(*backend, 256);
  const std::vector<void*> args = {in.data(), out.data()};
  for (const std::uint32_t good : {0u, 1u, 0u, 1u}) {
    backend->upload(in.data(), std::as_bytes(std::span(&good, 1)));
    const auto launch = [&] {
      backend->launch(*kernel, source, 0, std::as_bytes(std::span(args)));
    };
    if (good == 1) {
      EXPECT_NO_THROW(launch());
    } else {
      EXPECT_THROW(launch(), Error);
    }
  }
}

}  // namespace
}  // namespace vqgen::host_test
