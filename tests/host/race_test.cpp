// Must-fail kernels for the race checker: one seeded race each, found in every order of lanes, with
// both accesses and both threads named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/host/trial.h"

namespace vqgen::host_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// `body` has the lines from trial.cu:2 on; row is the arena of 128 words.
Trial racy(const std::string& body, unsigned threads = 64) {
  Trial trial;
  trial.text = "VQ_KERNEL(trial, " + std::to_string(threads) +
               ", Args) { int t = vq::thread_index(); "
               "vq::u32* row = reinterpret_cast<vq::u32*>(vq::shared_memory());\n" +
               body + "}";
  trial.threads = threads;
  trial.shared_bytes = 512;
  trial.in.assign(256, 5u);
  return trial;
}

// One side of the report: "store_shared of 4 bytes" and its line.
struct Side {
  std::string access;
  int line;
  bool operator==(const Side&) const = default;
};

struct Report {
  Side earlier, later;
  int earlier_thread, later_thread;
};

// The number after the first `words` from `at` on.
int number_after(const std::string& text, const std::string& words, std::size_t at) {
  const std::size_t found = text.find(words, at);
  EXPECT_NE(found, std::string::npos) << words << " in " << text;
  return found == std::string::npos ? -1 : std::stoi(text.substr(found + words.size()));
}

// "... thread 2: race at PLACE: EARLIER by thread 1 (trial.cu:3), then LATER (trial.cu:4); REMEDY"
Report parse(const std::string& text) {
  EXPECT_TRUE(text.starts_with("kernel trial, block (")) << text;
  const std::size_t place = text.find(": race at ") + 2;
  const std::size_t earlier = text.find(": ", place) + 2;
  const std::size_t later = text.find(", then ", earlier) + 7;
  const auto side = [&](std::size_t at) {
    return Side{text.substr(at, text.find(" bytes", at) + 6 - at),
                number_after(text, "(trial.cu:", at)};
  };
  EXPECT_NE(text.find("; ", later), std::string::npos) << text;
  return {side(earlier), side(later), number_after(text, " by thread ", earlier),
          number_after(text, ", thread ", 0)};
}

// Expects in every order a race between `a` and `b`, whichever came first, whose threads satisfy
// `threads`, in that order.
void expect_race(const Trial& trial, const Side& a, const Side& b,
                 const std::function<bool(int, int)>& threads, const std::string& words = "") {
  for (const HostOptions& options : all_orders(true)) {
    const std::string text = fault_of(trial, options);
    SCOPED_TRACE(text);
    const Report report = parse(text);
    if (report.earlier == a && report.later == b) {
      EXPECT_TRUE(threads(report.earlier_thread, report.later_thread) ||
                  (a == b && threads(report.later_thread, report.earlier_thread)));
    } else {
      EXPECT_TRUE(report.earlier == b && report.later == a);
      EXPECT_TRUE(threads(report.later_thread, report.earlier_thread));
    }
    EXPECT_THAT(text, HasSubstr(words));
  }
}

const std::string kStore4 = "store_shared of 4 bytes";
const std::string kLoad4 = "load_shared of 4 bytes";
const std::string kCopy4 = "copy_async of 4 bytes";

bool across(int a, int b) { return (a + 32) % 64 == b; }

TEST(Race, NoBarrierAfterStaging) {
  const Trial trial = racy(R"(vq::store_shared(row + t, 1u);
    vq::store_global(args.out + t, vq::load_shared(row + (t + 32) % 64));
  )");
  expect_race(trial, {kStore4, 2}, {kLoad4, 3}, across, "put a sync_block between them");
  EXPECT_THAT(fault_of(trial, {.check_races = true}),
              HasSubstr("kernel trial, block (0,0,0), thread 32: race at offset 128 of shared "
                        "memory: load_shared of 4 bytes by thread 0 (trial.cu:3), then "
                        "store_shared of 4 bytes (trial.cu:2); put a sync_block between them"));
}

TEST(Race, HarmlessOrderIsNoExcuse) {
  // Forward, every load follows its store: the result is right, yet there is a race.
  const Trial trial = racy(R"(vq::store_shared(row + t, 7u);
    if (t >= 32) vq::store_global(args.out + t, vq::load_shared(row + t - 32));
  )");
  EXPECT_EQ(run(trial)[63], 7u);
  expect_race(trial, {kStore4, 2}, {kLoad4, 3}, [](int a, int b) { return a + 32 == b; });
}

TEST(Race, BufferIsReusedBeforeItsReadersAreDone) {
  const Trial trial = racy(R"(vq::store_shared(row + t, 1u);
    vq::sync_block();
    const vq::u32 word = vq::load_shared(row + (t + 32) % 64);
    vq::store_shared(row + t, word);
    vq::sync_block();
    vq::store_global(args.out + t, vq::load_shared(row + t));
  )");
  expect_race(trial, {kLoad4, 4}, {kStore4, 5}, across);
}

TEST(Race, ExchangeInAWarpWithoutItsBarrier) {
  const Trial trial = racy(R"(vq::store_shared(row + t, 1u);
    vq::store_global(args.out + t, vq::load_shared(row + (t ^ 1)));
  )");
  expect_race(
      trial, {kStore4, 2}, {kLoad4, 3}, [](int a, int b) { return (a ^ 1) == b; },
      "put a sync_block between them, or a sync_warp if no other warp shares it");
}

TEST(Race, ShuffleIsNoBarrier) {
  const Trial trial = racy(R"(vq::store_shared(row + t, 1u);
    const vq::u32 other = vq::shuffle_xor(1u, 1);
    vq::store_global(args.out + t, other + vq::load_shared(row + (t ^ 1)));
  )");
  EXPECT_EQ(run(trial), std::vector(64, 2u));
  expect_race(trial, {kStore4, 2}, {kLoad4, 4}, [](int a, int b) { return (a ^ 1) == b; });
}

TEST(Race, CopyIsReadBeforeTheWait) {
  for (const char* wait : {"", "vq::copy_async_wait<1>();"}) {
    const Trial trial = racy(R"(vq::copy_async(row + t, args.in + t);
      vq::copy_async_commit();)" +
                             std::string(wait) + R"(
      vq::sync_block();
      vq::store_global(args.out + t, vq::load_shared(row + 63 - t));
    )");
    expect_race(
        trial, {kCopy4, 2}, {kLoad4, 5}, [](int a, int b) { return a == 63 - b; },
        "still in flight");
  }
}

TEST(Race, CopyIsReadByItsOwnThreadBeforeTheWait) {
  const Trial trial = racy(R"(vq::copy_async(row + t, args.in + t);
    vq::copy_async_commit();
    vq::store_global(args.out + t, vq::load_shared(row + t));
  )");
  expect_race(
      trial, {kCopy4, 2}, {kLoad4, 4}, [](int a, int b) { return a == b; },
      "put a copy_async_wait before it");
}

TEST(Race, CopyWaitWithoutABarrier) {
  const Trial trial = racy(R"(vq::copy_async(row + t, args.in + t);
    vq::copy_async_commit();
    vq::copy_async_wait<0>();
    vq::store_global(args.out + t, vq::load_shared(row + (t + 32) % 64));
  )");
  expect_race(trial, {kCopy4, 2}, {kLoad4, 5}, across);
  // A barrier before the wait orders nothing after it.
  expect_race(racy(R"(vq::copy_async(row + t, args.in + t);
    vq::copy_async_commit();
    vq::sync_block();
    vq::copy_async_wait<0>();
    vq::store_global(args.out + t, vq::load_shared(row + (t + 32) % 64));
  )"),
              {kCopy4, 2}, {kLoad4, 6}, across);
}

TEST(Race, CopyThatLandedAfterTheBarrier) {
  // The shuffle makes every lane wait before any loads: nothing is in flight, but nothing is
  // ordered.
  const Trial trial = racy(R"(vq::copy_async(row + t, args.in + t);
    vq::copy_async_commit();
    vq::sync_block();
    vq::copy_async_wait<0>();
    vq::store_global(args.out + t, vq::shuffle_xor(1u, 1) + vq::load_shared(row + (t ^ 1)));
  )");
  expect_race(
      trial, {kCopy4, 2}, {kLoad4, 6}, [](int a, int b) { return (a ^ 1) == b; },
      "put a sync_block between the copy's copy_async_wait and it");
}

TEST(Race, CopyOverwritesATileThatIsStillRead) {
  const Trial trial = racy(R"(vq::store_shared(row + t, 1u);
    vq::sync_block();
    vq::store_global(args.out + t, vq::load_shared(row + (t + 32) % 64));
    vq::copy_async(row + t, args.in + t);
    vq::copy_async_commit();
    vq::copy_async_wait<0>();
  )");
  expect_race(trial, {kLoad4, 4}, {kCopy4, 5}, across);
}

TEST(Race, TwoCopiesToOneWord) {
  expect_race(racy(R"(if (t % 32 == 5) vq::copy_async(row, args.in + t);
    vq::copy_async_commit();
    vq::copy_async_wait<0>();
  )"),
              {kCopy4, 2}, {kCopy4, 2}, [](int a, int b) { return a == 5 && b == 37; });
}

TEST(Race, TwoWritersOfOneWord) {
  const Trial trial = racy("if (t == 9 || t == 50) vq::store_shared(row + 3, 1u);");
  EXPECT_NO_THROW(run(trial));
  expect_race(
      trial, {kStore4, 2}, {kStore4, 2}, [](int a, int b) { return a == 9 && b == 50; },
      "at offset 12 of shared memory");
}

TEST(Race, SumsAreReadBeforeTheBarrier) {
  const std::string add = "add_shared of 4 bytes";
  const Trial read = racy(R"(vq::store_shared(row + t, 0u); vq::sync_block();
    vq::add_shared(row + t % 4, 1u);
    if (t == 50) vq::store_global(args.out, vq::load_shared(row + 1));
  )");
  expect_race(
      read, {add, 3}, {kLoad4, 4}, [](int a, int b) { return a % 4 == 1 && b == 50; },
      "at offset 4 of shared memory");
  const Trial cleared = racy(R"(if (t == 9) vq::store_shared(row, 0u);
    vq::add_shared(row, 1u);
  )");
  expect_race(cleared, {kStore4, 2}, {add, 3}, [](int a, int b) { return a == 9 && b != 9; });
}

TEST(Race, HalvesOverlapAWord) {
  const Trial trial = racy(R"(vq::u16* halves = reinterpret_cast<vq::u16*>(row);
    if (t == 40) vq::store_shared(halves + 7, vq::u16{1});
    if (t == 4) vq::store_global(args.out, vq::load_shared(row + 3));
    if (t == 5) vq::store_global(args.out + 1, vq::load_shared(row + 2));
  )");
  expect_race(
      trial, {"store_shared of 2 bytes", 3}, {kLoad4, 4},
      [](int a, int b) { return a == 40 && b == 4; }, "at offset 14 of shared memory");
}

TEST(Race, VectorOverlapsAWord) {
  const Trial trial = racy(R"(vq::U32x4* quads = reinterpret_cast<vq::U32x4*>(row);
    if (t == 1) vq::store_shared(quads + 1, vq::U32x4{1, 2, 3, 4});
    if (t == 33) vq::store_shared(row + 7, 1u);
  )");
  expect_race(
      trial, {"store_shared of 16 bytes", 3}, {kStore4, 4},
      [](int a, int b) { return a == 1 && b == 33; }, "at offset 28 of shared memory");
}

TEST(Race, BarrierAtTheWrongPlaceOfALoop) {
  // The barriers of the rounds before and after order nothing within a round.
  const Trial trial = racy(R"(for (int turn = 0; turn < 4; ++turn) {
      vq::u32* buffer = row + turn % 2 * 64;
      if (turn == 2) vq::store_shared(buffer + t, 1u);
      if (turn == 2) vq::store_global(args.out + t, vq::load_shared(buffer + (t + 32) % 64));
      vq::sync_block();
    }
  )");
  expect_race(trial, {kStore4, 4}, {kLoad4, 5}, across);
}

TEST(Race, ReadOfTheLastTurnMeetsTheStoreOfTheNext) {
  const Trial trial = racy(R"(for (int turn = 0; turn < 5; ++turn) {
      vq::store_shared(row + t, 1u);
      vq::sync_block();
      const vq::u32 word = vq::load_shared(row + (t + 32) % 64);
      if (turn == 4) vq::store_global(args.out + t, word);
      if (turn != 2) vq::sync_block();
    }
  )");
  expect_race(trial, {kLoad4, 5}, {kStore4, 3}, across);
}

TEST(Race, WarpBarrierBetweenWarps) {
  const Trial trial = racy(R"(vq::store_shared(row + t, 1u);
    vq::sync_warp();
    vq::store_global(args.out + t, vq::load_shared(row + (t + 32) % 64));
  )");
  expect_race(trial, {kStore4, 2}, {kLoad4, 4}, across, "put a sync_block between them");
}

TEST(Race, ReadByTheWriterHidesNoOther) {
  for (const std::string writer : {"12", "13"}) {
    const Trial trial = racy("const int w = " + writer + R"(;
      if (t == w || t == (w ^ 1)) vq::store_global(args.out + t, vq::load_shared(row));
      vq::shuffle_xor(1u, 1);
      if (t == w) vq::store_shared(row, 1u);
    )");
    expect_race(trial, {kLoad4, 3}, {kStore4, 5}, [](int a, int b) { return (a ^ 1) == b; });
  }
}

TEST(Race, LaterReaderOfTheWritersWarpHidesNoOther) {
  // Three threads read one word; the writer's own warp has passed a barrier since, thread 70 has
  // not.
  const Trial trial = racy(R"(
    if (t == 3 || t == 4 || t == 70) vq::store_global(args.out + t, vq::load_shared(row));
    vq::sync_warp();
    if (t == 6) vq::store_global(args.out + t, vq::load_shared(row));
    vq::sync_warp();
    if (t == 5) vq::store_shared(row, 1u);
  )",
                           96);
  Trial wide = trial;
  wide.out_words = 96;
  expect_race(wide, {kLoad4, 3}, {kStore4, 7}, [](int a, int b) { return a == 70 && b == 5; });
}

const std::string kStoreGlobal = "store_global of 4 bytes";

TEST(Race, TwoThreadsStoreOneGlobalWord) {
  const Trial trial = racy("if (t == 2 || t == 34) vq::store_global(args.out + 5, 1u);");
  expect_race(
      trial, {kStoreGlobal, 2}, {kStoreGlobal, 2}, [](int a, int b) { return a == 2 && b == 34; },
      "at byte 20 of an allocation of 256 bytes");
}

// Accesses to neighbouring bytes do not conflict: each byte is a place of its own.
TEST(Race, TwoThreadsStoreOneGlobalByte) {
  const std::string bytes = "vq::u8* const bytes = reinterpret_cast<vq::u8*>(args.out);\n";
  const Trial apart = racy(bytes + "vq::store_global(bytes + t, vq::u8{1});");
  EXPECT_EQ(run(apart, {.check_races = true})[0], 0x01010101u);
  expect_race(
      racy(bytes + "if (t == 2 || t == 34) vq::store_global(bytes + 7, vq::u8{1});"),
      {"store_global of 1 bytes", 3}, {"store_global of 1 bytes", 3},
      [](int a, int b) { return a == 2 && b == 34; }, "at byte 7 of an allocation of 256 bytes");
}

TEST(Race, TwoBlocksStoreOneGlobalWord) {
  Trial trial = racy("if (t == 2) vq::store_global(args.out + vq::block_x() % 2, 1u);");
  trial.grid = {3, 1, 1};
  expect_race(trial, {kStoreGlobal, 2}, {kStoreGlobal, 2},
              [](int a, int b) { return a == 2 && b == 2; });
  EXPECT_THAT(fault_of(trial, {.check_races = true}),
              AllOf(HasSubstr("block (2,0,0), thread 2: race at byte 0"),
                    HasSubstr("by thread 2 of block (0,0,0)"),
                    HasSubstr("let one thread of a launch store it")));
}

TEST(Race, LoadGlobalOfWhatTheLaunchStores) {
  const std::string load = "load_global of 4 bytes";
  expect_race(
      racy(R"(vq::store_global(args.out + t, 1u);
    vq::sync_block();
    if (t == 8) vq::store_shared(row, vq::load_global(args.out + 8));
  )"),
      {kStoreGlobal, 2}, {load, 4}, [](int a, int b) { return a == 8 && b == 8; },
      "load in another launch");
  // The load comes first, by another thread.
  expect_race(racy(R"(if (t == 8) vq::store_shared(row, vq::load_global(args.out + 40));
    vq::store_global(args.out + t, 1u);
  )"),
              {load, 2}, {kStoreGlobal, 3}, [](int a, int b) { return a == 8 && b == 40; });
}

TEST(Race, CopyOfWhatTheLaunchStores) {
  expect_race(racy(R"(if (t == 40) vq::store_global(args.out, 1u);
    if (t == 3) vq::copy_async(row, args.out);
  )"),
              {kStoreGlobal, 2}, {kCopy4, 3}, [](int a, int b) { return a == 40 && b == 3; });
}

TEST(Race, IsFoundInALaterBlockToo) {
  Trial trial = racy(R"(vq::store_shared(row + t, 1u);
    if (vq::block_x() != 2) vq::sync_block();
    vq::store_global(args.out + vq::block_x() * 64 + t, vq::load_shared(row + (t + 32) % 64));
  )");
  trial.grid = {4, 1, 1};
  trial.out_words = 256;
  for (const HostOptions& options : all_orders(true)) {
    EXPECT_THAT(fault_of(trial, options), HasSubstr("block (2,0,0), thread"));
  }
}

TEST(RaceMode, KernelsOfTheOtherModeAreRefused) {
  const KernelSource source = source_of(racy(""));
  for (const bool checks : {false, true}) {
    const std::unique_ptr<Backend> one = make_host_backend({.check_races = checks});
    const std::unique_ptr<Backend> other = make_host_backend({.check_races = !checks});
    EXPECT_NE(one->compiler(source).options, other->compiler(source).options);
    try {
      other->load(one->compile(source), source);
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("races"), HasSubstr("compile it again")));
    }
  }
}

}  // namespace
}  // namespace vqgen::host_test
