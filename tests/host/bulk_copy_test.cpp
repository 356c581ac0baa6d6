// Bulk copies on the host: bytes come with their barrier's phase, in every order of lanes, and what
// wrong use is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/host/trial.h"

namespace vqgen::host_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Two warps sum up 6 rounds of 64 words, each thread a word of a round, which come to two places in
// turn. The warp that is the last to have read a place asks for what comes there next.
Trial rounds() {
  Trial trial;
  trial.text = R"(
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
  trial.shared_bytes = 536;
  trial.in.resize(6 * 64);
  std::iota(trial.in.begin(), trial.in.end(), 1u);
  return trial;
}

Trial changed(const std::string& place, const std::string& instead) {
  Trial trial = rounds();
  const std::size_t at = trial.text.find(place);
  EXPECT_NE(at, std::string::npos) << place;
  trial.text.replace(at, place.size(), instead);
  return trial;
}

TEST(BulkCopy, BringsEveryRoundInEveryOrder) {
  for (const bool check_races : {false, true}) {
    for (const HostOptions& options : all_orders(check_races)) {
      const std::vector<std::uint32_t> out = run(rounds(), options);
      for (std::uint32_t t = 0; t < 64; ++t) EXPECT_EQ(out[t], 6 * (t + 1) + 15 * 64) << t;
    }
  }
}

TEST(BulkCopyFault, ReadsBeforeTheWaitAreARace) {
  const Trial early = changed("vq::bulk_barrier_wait(barrier(place), round / 2 % 2);", ";");
  for (const HostOptions& options : all_orders(true)) {
    EXPECT_THAT(fault_of(early, options),
                AllOf(HasSubstr("race at offset"), HasSubstr("copy_bulk of 16 bytes by thread"),
                      HasSubstr("still in flight"), HasSubstr("wait for the copy's barrier")));
  }
}

TEST(BulkCopyFault, AThreadThatHasNotWaitedItselfReadsInARace) {
  const Trial others = changed("vq::bulk_barrier_wait(barrier(place), round / 2 % 2);",
                               "if (t < 32) vq::bulk_barrier_wait(barrier(place), round / 2 % 2);");
  EXPECT_THAT(fault_of(others, {.check_races = true}),
              AllOf(HasSubstr("race at offset"), HasSubstr("copy_bulk of 16 bytes by thread")));
}

TEST(BulkCopyFault, CopiesOverWhatOthersReadAreARace) {
  // The lanes of the warp have not told the one that counts.
  const Trial untold = changed("vq::sync_warp();", "");
  // Nor has the other warp, which has waited and reads later.
  const Trial uncounted =
      changed("vq::count_shared(readers(place), 1) == 1",
              "(t == 0) == (round % 2 == 0) && (vq::count_shared(readers(place), 1), true)");
  for (const HostOptions& options : all_orders(true)) {
    EXPECT_THAT(fault_of(untold, options), HasSubstr("race at offset"));
    EXPECT_NE(fault_of(uncounted, options), "");
  }
}

TEST(BulkCopyFault, CountersAndBarriersAreUsedBehindABarrier) {
  const Trial early = changed("vq::sync_block();", "");
  EXPECT_NE(fault_of(early, {.check_races = true}), "");
  EXPECT_THAT(fault_of(changed("vq::bulk_barrier_begin(barrier(place));", ";")),
              HasSubstr("no barrier stands there"));
}

TEST(BulkCopyFault, PhasesExpectTheBytesOfTheirCopies) {
  EXPECT_THAT(fault_of(changed("vq::bulk_barrier_expect(barrier(place), 256)",
                               "vq::bulk_barrier_expect(barrier(place), 240)")),
              HasSubstr("copy_bulk of more bytes than its phase expects"));
  EXPECT_THAT(fault_of(changed("vq::bulk_barrier_expect(barrier(place), 256)",
                               "vq::bulk_barrier_expect(barrier(place), 272)")),
              HasSubstr("deadlock: threads 0-63 wait at bulk_barrier_wait (trial.cu:"));
  EXPECT_THAT(fault_of(changed("ask(args, 1);", "ask(args, 0);")),
              HasSubstr("bulk_barrier_expect in a phase that expects bytes already"));
}

TEST(BulkCopyFault, CopiesAreAlignedAndInside) {
  EXPECT_THAT(fault_of(changed("args.in + round * 64)", "args.in + round * 64 + 1)")),
              AllOf(HasSubstr("copy_bulk of 16 bytes"), HasSubstr("misaligned")));
  EXPECT_THAT(fault_of(changed("vq::shared_memory() + place * 256,",
                               "vq::shared_memory() + place * 256 + 8,")),
              AllOf(HasSubstr("copy_bulk of 16 bytes"), HasSubstr("misaligned")));
  EXPECT_THAT(fault_of(changed("args.in + round * 64)", "args.in + round * 64 + 384)")),
              HasSubstr("copy_bulk of 16 bytes"));
}

}  // namespace
}  // namespace vqgen::host_test
