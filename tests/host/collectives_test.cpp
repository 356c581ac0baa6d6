// The collectives of a warp and the atomics on the host: right results in every lane order, also
// under the race checker, and reports of wrong use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vq/fragments.h>

#include <algorithm>
#include <array>

#include "tests/cuda/collectives_kernel.h"
#include "tests/host/trial.h"

namespace vqgen::host_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Lanes 0, 5 and 31 by hand from the figures of the PTX ISA.
constexpr bool is(vq::fragment::Place place, int row, int column) {
  return place.row == row && place.column == column;
}
static_assert(is(vq::fragment::a_m16n8k16(5, 1), 1, 3));
static_assert(is(vq::fragment::a_m16n8k16(5, 2), 9, 2));
static_assert(is(vq::fragment::a_m16n8k16(31, 4), 7, 14));
static_assert(is(vq::fragment::a_m16n8k16(31, 7), 15, 15));
static_assert(is(vq::fragment::b_m16n8k16(5, 1), 3, 1));
static_assert(is(vq::fragment::b_m16n8k16(31, 2), 14, 7));
static_assert(is(vq::fragment::a_m16n8k32(5, 6), 9, 6));
static_assert(is(vq::fragment::a_m16n8k32(31, 8), 7, 28));
static_assert(is(vq::fragment::b_m16n8k32(5, 7), 23, 1));
static_assert(is(vq::fragment::c_m16n8(31, 1), 7, 7));
static_assert(is(vq::fragment::c_m16n8(5, 2), 9, 2));
static_assert(is(vq::fragment::m8n8(5, 1, false), 1, 3));
static_assert(is(vq::fragment::m8n8(5, 1, true), 3, 1));

// Every element is held once.
template <std::size_t kRows, std::size_t kColumns>
bool covers(vq::fragment::Place (*map)(int, int), int elements) {
  std::array<int, kRows * kColumns> held{};
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < elements; ++i) {
      const vq::fragment::Place at = map(lane, i);
      ++held.at(static_cast<std::size_t>(at.row) * kColumns + static_cast<std::size_t>(at.column));
    }
  }
  return std::ranges::count(held, 1) == static_cast<std::ptrdiff_t>(held.size());
}

TEST(Fragments, HoldEveryElementOnce) {
  using namespace vq::fragment;
  EXPECT_TRUE((covers<16, 16>(a_m16n8k16, 8)));
  EXPECT_TRUE((covers<16, 8>(b_m16n8k16, 4)));
  EXPECT_TRUE((covers<16, 32>(a_m16n8k32, 16)));
  EXPECT_TRUE((covers<32, 8>(b_m16n8k32, 8)));
  EXPECT_TRUE((covers<16, 8>(c_m16n8, 4)));
}

Trial collectives(bool bf16) {
  Trial trial;
  trial.text =
      std::string(test::kCollectivesText) +
      "VQ_KERNEL(trial, 32, Args) { vq::collectives<vq::Element::" + (bf16 ? "bf16" : "f16") +
      ">(args.in, args.out); }";
  trial.threads = 32;
  trial.shared_bytes = test::kCollectivesSharedBytes;
  trial.out_words = test::kCollectivesOut;
  return trial;
}

TEST(Collectives, AgreeWithNaiveMatrices) {
  for (const bool bf16 : {false, true}) {
    for (const bool integers : {false, true}) {
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        const test::Collectives values(bf16, integers, seed);
        Trial trial = collectives(bf16);
        trial.in = values.in;
        values.judge(run(trial), 0);
        EXPECT_EQ(run(trial)[test::kOutHas] + run(trial)[test::kOutHas + 1], 2u);
      }
    }
  }
}

TEST(Collectives, GiveTheSameInEveryOrderAndRaceNowhere) {
  const test::Collectives values(false, false, 4);
  Trial trial = collectives(false);
  trial.in = values.in;
  for (const bool check_races : {false, true}) {
    for (const HostOptions& options : all_orders(check_races)) values.judge(run(trial, options), 0);
  }
}

Trial last_block() {
  Trial trial;
  trial.text = std::string(test::kCollectivesText) +
               "VQ_KERNEL(trial, 64, Args) { vq::last_block(args.in, args.out); }";
  trial.shared_bytes = 4;
  trial.grid = {test::kLastBlocks, 1, 1};
  trial.in = test::last_block_in();
  trial.out_words = test::kLastOut;
  return trial;
}

TEST(Atomics, LastBlockReducesWhatTheOthersStored) {
  for (const bool check_races : {false, true}) {
    for (const HostOptions& options : all_orders(check_races)) {
      test::judge_last_block(run(last_block(), options));
    }
  }
}

TEST(Atomics, ReadOnlyLoadsOfPartialsAreARace) {
  Trial trial = last_block();
  const std::string coherent = "sum += load_global_coherent(";
  trial.text.replace(trial.text.find(coherent), coherent.size(), "sum += load_global(");
  EXPECT_THAT(fault_of(trial, {.check_races = true}),
              AllOf(HasSubstr("race at byte"), HasSubstr("then load_global of 4 bytes")));
}

// Runs last_block() with its one `place` replaced by `instead`.
Trial edited_last_block(const std::string& place, const std::string& instead) {
  Trial trial = last_block();
  const std::size_t at = trial.text.find(place);
  EXPECT_NE(at, std::string::npos) << place;
  trial.text.replace(at, place.size(), instead);
  return trial;
}

// In every order of blocks, the stores of the others reveal a block that reads too early.
TEST(Atomics, PartialsOfBlocksThatNoCounterOrdersAreARace) {
  for (const HostOptions& options : all_orders(true)) {
    for (const Trial& trial :
         {edited_last_block("atomic_add_global(const_cast<u32*>(in), 1u)", "6u"),
          edited_last_block("if (load_shared(ticket) != 6u) return;", "")}) {
      EXPECT_THAT(
          fault_of(trial, options),
          AllOf(HasSubstr("race at byte"), HasSubstr("load_global_coherent of"),
                HasSubstr("store_global of 4 bytes"), HasSubstr("let a counter order them")));
    }
  }
}

// The addition releases the stores of its own thread, and those that a barrier made visible to it.
TEST(Atomics, AnAdditionWithoutABarrierBeforeItIsARace) {
  const Trial early =
      edited_last_block("sync_block();\n  if (t == 0) store_shared", "if (t == 0) store_shared");
  Trial late = early;
  const std::string store = "store_global(partials + mine, 3u * load_global(in + 64 + mine));";
  late.text.erase(late.text.find(store), store.size());
  const std::string told = "sync_block();\n  if (load_shared(ticket) != 6u) return;";
  late.text.replace(late.text.find(told), told.size(), store + told);
  for (const HostOptions& options : all_orders(true)) {
    for (const Trial& trial : {early, late}) {
      EXPECT_THAT(fault_of(trial, options),
                  AllOf(HasSubstr("race at byte"), HasSubstr("store_global of 4 bytes"),
                        HasSubstr("load_global_coherent of")));
    }
  }
}

TEST(Atomics, OtherCountersOrderNothing) {
  Trial trial = edited_last_block("atomic_add_global(const_cast<u32*>(in), 1u)",
                                  "atomic_add_global(const_cast<u32*>(in) + block_x(), 1u)");
  const std::string last = "if (load_shared(ticket) != 6u) return;";
  trial.text.replace(trial.text.find(last), last.size(), "if (block_x() != 6) return;");
  for (const HostOptions& options : all_orders(true)) {
    EXPECT_THAT(fault_of(trial, options),
                AllOf(HasSubstr("race at byte"), HasSubstr("let a counter order them")));
  }
}

TEST(Atomics, AddReturnsTheOldValueToEachThread) {
  Trial trial;
  trial.text = R"(VQ_KERNEL(trial, 64, Args) {
    vq::u32* counter = const_cast<vq::u32*>(args.in);
    const vq::u32 old = vq::atomic_add_global(counter, 2u);
    vq::store_global(args.out + old / 2, old);
  })";
  trial.grid = {16, 1, 1};
  trial.in = {0};
  trial.out_words = 1024;
  for (const HostOptions& options : all_orders()) {
    const std::vector<std::uint32_t> out = run(trial, options);
    for (std::uint32_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], 2 * i);
  }
}

// A kernel with fragments a, b and c; `body` begins at trial.cu:2.
Trial wrong(const std::string& body, unsigned threads = 32) {
  Trial trial;
  trial.text =
      "VQ_KERNEL(trial, " + std::to_string(threads) +
      ", Args) { int t = vq::thread_index(); vq::u32 a[4] = {}, b[2] = {}; "
      "float c[4] = {}; vq::u32* row = reinterpret_cast<vq::u32*>(vq::shared_memory());\n" +
      body + "}";
  trial.threads = threads;
  trial.shared_bytes = 1024;
  return trial;
}

TEST(CollectiveFault, DivergentMma) {
  EXPECT_THAT(fault_of(wrong(R"(if (t < 16) vq::mma_m16n8k16<vq::Element::f16>(c, a, b);
    else vq::mma_m16n8k16<vq::Element::f16>(c, a, b);
    vq::sync_warp();)")),
              AllOf(HasSubstr("divergent mma (trial.cu:3)"), HasSubstr("mma (trial.cu:2)")));
  for (const HostOptions& options : all_orders()) {
    EXPECT_THAT(
        fault_of(wrong("if (t != 9) vq::mma_m16n8k16<vq::Element::bf16>(c, a, b);"), options),
        AllOf(HasSubstr("deadlock: threads 0-8, 10-31 wait at mma (trial.cu:2)"),
              HasSubstr("thread 9 has returned")));
  }
}

TEST(CollectiveFault, DivergentVote) {
  EXPECT_THAT(fault_of(wrong(R"(if (t < 16) vq::any_of_warp(true);
    else vq::sync_warp();)")),
              AllOf(HasSubstr("divergent"), HasSubstr("any_of_warp (trial.cu:2)")));
}

TEST(CollectiveFault, MatricesNeedWholeWarps) {
  for (const char* call :
       {"vq::mma_m16n8k16<vq::Element::f16>(c, a, b);", "vq::movmatrix_trans(a[0]);",
        "vq::ldmatrix_x2(b, row);", "vq::any_of_warp(t == 3);",
        "vq::i32 d[4] = {}; vq::mma_m16n8k32_s8(d, a, b);",
        "vq::i32 d[4] = {}; vq::mma_m16n8k32_s8_u8(d, a, b);",
        "vq::i32 d[4] = {}; vq::mma_m16n8k32_u8_s8(d, a, b);"}) {
    EXPECT_THAT(fault_of(wrong(call, 40)),
                AllOf(HasSubstr("lane 0 of "), HasSubstr("asks for lane 8, which")))
        << call;
  }
}

TEST(CollectiveFault, ShuffleFromNoLane) {
  for (const char* source : {"32", "-1", "t + 1"}) {
    EXPECT_THAT(
        fault_of(wrong(std::string("vq::shuffle(1u, ") + source + ");")),
        AllOf(HasSubstr("of shuffle (trial.cu:2) asks for lane"), HasSubstr("does not have")));
  }
}

TEST(CollectiveFault, LdmatrixRowMisalignedOrOutside) {
  EXPECT_THAT(fault_of(wrong("vq::ldmatrix_x4(a, row + 4 * t + (t == 7 ? 1 : 0));")),
              HasSubstr("thread 7: ldmatrix of 16 bytes at a misaligned address, 4 past a multiple "
                        "of 16 (trial.cu:2)"));
  EXPECT_THAT(fault_of(wrong("vq::ldmatrix_x4(a, row + 12 * t);")),
              HasSubstr("thread 22: ldmatrix of 16 bytes at offset 1056 of an arena of 1024"));
  EXPECT_THAT(fault_of(wrong("vq::ldmatrix_x2(b, args.out);")),
              HasSubstr("thread 0: ldmatrix of 16 bytes"));
}

TEST(CollectiveFault, LdmatrixTakesPartInRaces) {
  const Trial early = wrong(R"(for (int i = 0; i < 4; ++i) vq::store_shared(row + 4 * t + i, 1u);
    vq::ldmatrix_x4(a, row + 4 * t);)");
  const Trial late = wrong(R"(for (int i = 0; i < 4; ++i) vq::store_shared(row + 4 * t + i, 1u);
    vq::sync_warp();
    vq::ldmatrix_x4(a, row + 4 * t);
    vq::store_shared(row + 4 * t, a[0]);)");
  for (const HostOptions& options : all_orders(true)) {
    EXPECT_THAT(fault_of(early, options),
                AllOf(HasSubstr("race at offset"), HasSubstr("store_shared of 4 bytes by thread"),
                      HasSubstr("(trial.cu:2), then ldmatrix of 2 bytes (trial.cu:3)")));
    EXPECT_THAT(
        fault_of(late, options),
        AllOf(HasSubstr("race at offset"), HasSubstr("(trial.cu:4)"), HasSubstr("(trial.cu:5)")));
  }
}

}  // namespace
}  // namespace vqgen::host_test
