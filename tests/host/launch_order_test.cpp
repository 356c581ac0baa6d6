// What a kernel may do before the previous launch has ended: seeded bugs, and the reports that find
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/host/trial.h"

namespace vqgen::host_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// 64 threads; `body` is the line trial.cu:1.
Trial ahead(const std::string& body) {
  Trial trial;
  trial.text = "VQ_KERNEL_AHEAD(trial, 64, Args) { int t = vq::thread_index(); " + body + "}";
  trial.shared_bytes = 256;
  trial.in.assign(64, 5u);
  return trial;
}

TEST(LaunchOrder, ConstantsAndSharedMemoryComeBeforeTheWait) {
  const Trial trial = ahead(
      "vq::u32* row = reinterpret_cast<vq::u32*>(vq::shared_memory());"
      "vq::store_shared(row + t, vq::load_constant(args.in + t));"
      "vq::after_last_launch(); vq::sync_block();"
      "vq::store_global(args.out + t, vq::load_shared(row + 63 - t) + vq::load_global(args.in));");
  for (const HostOptions& options : all_orders(true)) {
    EXPECT_EQ(run(trial, options), std::vector<std::uint32_t>(64, 10u));
  }
}

TEST(LaunchOrder, CopiesOfConstantsComeBeforeTheWait) {
  const Trial trial = ahead(
      "vq::U32x4* row = reinterpret_cast<vq::U32x4*>(vq::shared_memory());"
      "const auto* from = reinterpret_cast<const vq::U32x4*>(args.in);"
      "if (t < 16) vq::copy_constant_async(row + t, from + t);"
      "vq::copy_async_commit(); vq::after_last_launch();"
      "vq::copy_async_wait<0>(); vq::sync_block();"
      "vq::store_global(args.out + t, vq::load_shared(reinterpret_cast<vq::u32*>(row) + 63 - t));");
  for (const HostOptions& options : all_orders(true)) {
    EXPECT_EQ(run(trial, options), std::vector<std::uint32_t>(64, 5u));
  }
}

// A hint promises nothing.
TEST(LaunchOrder, HintsComeBeforeTheWaitAndAreNotWhatStandsThere) {
  const auto hinted = [](const std::string& place) {
    return ahead("const vq::i32 hint = vq::load_hint(reinterpret_cast<const vq::i32*>(args.in)" +
                 place +
                 "); vq::after_last_launch(); const vq::u32 word = vq::load_global(args.in + t);"
                 "vq::store_global(args.out + t, static_cast<vq::u32>(hint) == word ? 0u : word);");
  };
  for (const HostOptions& options : all_orders(true)) {
    EXPECT_EQ(run(hinted(" + t"), options), std::vector<std::uint32_t>(64, 5u));
  }
  EXPECT_THAT(fault_of(hinted(" + 4096")), HasSubstr("load_constant of 4 bytes"));
}

TEST(LaunchOrder, OtherAccessesBeforeTheWaitAreFaults) {
  for (const auto& [name, access] :
       {std::pair{"load_global", "vq::u32 word = vq::load_global(args.in + t);"},
        std::pair{"load_global_coherent", "vq::u32 word = vq::load_global_coherent(args.in + t);"},
        std::pair{"atomic_add_global", "vq::u32 word = vq::atomic_add_global(args.out + t, 1u);"},
        std::pair{"copy_async",
                  "vq::u32 word = 0; vq::copy_async(reinterpret_cast<vq::u32*>(vq::shared_memory())"
                  " + t, args.in + t);"},
        std::pair{"store_global", "vq::u32 word = 1; vq::store_global(args.out + t, word);"}}) {
    const Trial trial = ahead(std::string(access) +
                              "vq::after_last_launch(); vq::store_global(args.out + t, word);");
    EXPECT_THAT(fault_of(trial),
                AllOf(HasSubstr(std::string(name) + " of 4 bytes before after_last_launch()"),
                      HasSubstr("trial.cu:1"), HasSubstr("load_constant")));
  }
}

TEST(LaunchOrder, EachThreadWaitsForItself) {
  const Trial one = ahead(
      "if (t == 0) vq::after_last_launch(); vq::sync_block();"
      "vq::store_global(args.out + t, 1u);");
  EXPECT_THAT(fault_of(one), HasSubstr("store_global of 4 bytes before after_last_launch()"));
  const Trial early = ahead("if (t < 32) return; vq::after_last_launch();");
  EXPECT_THAT(fault_of(early), HasSubstr("returns without after_last_launch()"));
}

TEST(LaunchOrder, WhatIsConstantIsNotStored) {
  const Trial trial = ahead(
      "vq::u32 word = vq::load_constant(args.out + (t + 1) % 64); vq::after_last_launch();"
      "vq::store_global(args.out + t, word);");
  EXPECT_THAT(fault_of(trial, {.check_races = true}), HasSubstr("race"));
}

}  // namespace
}  // namespace vqgen::host_test
