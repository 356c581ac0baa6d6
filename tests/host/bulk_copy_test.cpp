// Bulk copies on the host: bytes arrive with their barrier's phase, in every order of lanes, and
// wrong use is reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cuda/bulk_copy_kernel.h"
#include "tests/host/trial.h"

namespace vqgen::host_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Trial rounds() {
  Trial trial;
  trial.text = test::kBulkText;
  trial.threads = test::kBulkThreads;
  trial.shared_bytes = test::kBulkSharedBytes;
  trial.in = test::bulk_in();
  trial.out_words = test::kBulkOut;
  return trial;
}

Trial made() {
  Trial trial = rounds();
  trial.text = test::kMadeText;
  trial.threads = test::kMadeThreads;
  return trial;
}

Trial changed(const std::string& place, const std::string& instead, Trial trial = rounds()) {
  const std::size_t at = trial.text.find(place);
  EXPECT_NE(at, std::string::npos) << place;
  trial.text.replace(at, place.size(), instead);
  return trial;
}

TEST(BulkCopy, BringsEveryRoundInEveryOrder) {
  for (const bool check_races : {false, true}) {
    for (const HostOptions& options : all_orders(check_races)) {
      test::judge_bulk(run(rounds(), options));
    }
  }
}

TEST(BulkBarrier, WarpsWaitForThoseThatArriveInEveryOrder) {
  for (const bool check_races : {false, true}) {
    for (const HostOptions& options : all_orders(check_races)) {
      test::judge_bulk(run(made(), options));
    }
  }
}

// Only arrivals say that a warp has finished its stores or reads, so its lanes must meet before it
// arrives.
TEST(BulkBarrierFault, AWarpsLanesComeTogetherBeforeItArrives) {
  for (const char* const of :
       {"vq::sync_warp();  // of the maker", "vq::sync_warp();  // of a reader"}) {
    EXPECT_THAT(fault_of(changed(of, ";", made()), {.check_races = true}),
                HasSubstr("race at offset"))
        << of;
  }
}

TEST(BulkBarrierFault, WaitsLeftOutAreRaces) {
  for (const char* const wait :
       {"vq::bulk_barrier_wait(made(place), parity);",
        "if (round >= 2) vq::bulk_barrier_wait(read(place), parity ^ 1u);"}) {
    for (const HostOptions& options : all_orders(true)) {
      EXPECT_NE(fault_of(changed(wait, ";", made()), options), "") << wait;
    }
  }
}

TEST(BulkBarrierFault, ArrivalsAreCounted) {
  EXPECT_THAT(fault_of(changed("vq::bulk_barrier_begin(read(place), 2);",
                               "vq::bulk_barrier_begin(read(place), 3);", made())),
              AllOf(HasSubstr("deadlock: "), HasSubstr("threads 64-95 wait at bulk_barrier_wait")));
  EXPECT_NE(fault_of(changed("if (t == 64) vq::bulk_barrier_arrive(made(place));",
                             "if (t <= 65) vq::bulk_barrier_arrive(made(place));", made()),
                     {.check_races = true}),
            "");
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
  // The lanes of the warp have not signalled the one that counts.
  const Trial untold = changed("vq::sync_warp();", "");
  // The other warp, which has waited and reads later, has not signalled either.
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
              HasSubstr("no barrier is there"));
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

TEST(BulkCopyFault, MemoryOfABarrierIsNothingElses) {
  const Trial over =
      changed("vq::store_global(args.out + t, sum);",
              "vq::sync_block();"
              "vq::store_shared(reinterpret_cast<vq::u32*>(barrier(0)) + t % 2, vq::u32{7});");
  EXPECT_THAT(fault_of(over, {.check_races = true}),
              HasSubstr("store_shared of 4 bytes over a barrier of bulk copies"));
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
