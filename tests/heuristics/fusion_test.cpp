// The solver on the layouts that kernels have: the known counts of shuffles, free axes, pinned
// threads, what it refuses and how it is drawn.
#include <bit>

#include "core/error.h"
#include "heuristics/fusion/draw.h"
#include "tests/heuristics/fusion_check.h"
#include "tests/message_of.h"

namespace vqgen::fusion {
namespace {

struct Known {
  FragmentLayout producer;
  FragmentLayout consumer;
  std::vector<std::string> free_axes;
  int shuffles;
  int steps;
  Fusion fusion;
};

FragmentLayout entries_mk(int v, int m, int k, int slots = 2) {
  return dequantized({"m", m}, {"k", k}, v, slots);
}
FragmentLayout entries_nk(int v, int n, int k, int slots = 2) {
  return dequantized({"n", n}, {"k", k}, v, slots);
}

std::vector<Known> known_cases() {
  constexpr auto kRegisters = Fusion::registers;
  const FragmentLayout a16 = mma_a(Mma::m16n8k16), b16 = mma_b(Mma::m16n8k16);
  const FragmentLayout b16x2 = mma_b(Mma::m16n8k16, 1, 2), b16x4 = mma_b(Mma::m16n8k16, 1, 4);
  const FragmentLayout a8 = mma_a(Mma::m16n8k8), b8x4 = mma_b(Mma::m16n8k8, 1, 4);
  const FragmentLayout a32 = mma_a(Mma::m16n8k32_s8), b32 = mma_b(Mma::m16n8k32_s8);
  return {
      // The paper's: one operand A of m16n8k16, entries of 8, 4 and 2.
      {entries_mk(8, 16, 16), a16, {}, 3, 3, kRegisters},
      {entries_mk(4, 16, 16), a16, {}, 2, 1, kRegisters},
      {entries_mk(2, 16, 16), a16, {}, 0, 0, kRegisters},
      {entries_nk(4, 8, 16), b16, {}, 1, 1, kRegisters},
      {entries_nk(2, 8, 16), b16, {}, 0, 0, kRegisters},
      {entries_nk(8, 8, 32), b16x2, {}, 3, 3, kRegisters},
      {entries_nk(4, 8, 32), b16x2, {}, 2, 1, kRegisters},
      {entries_nk(2, 8, 32), b16x2, {}, 0, 0, kRegisters},
      // With the reduction axis free, none, where a thread has as much of k as an entry is wide.
      {entries_nk(8, 8, 32), b16x2, {"k"}, 0, 0, kRegisters},
      {entries_nk(4, 8, 32), b16x2, {"k"}, 0, 0, kRegisters},
      {entries_nk(2, 8, 32), b16x2, {"k"}, 0, 0, kRegisters},
      {entries_nk(4, 8, 16), b16, {"k"}, 0, 0, kRegisters},
      {entries_mk(8, 16, 32), mma_a(Mma::m16n8k16, 1, 2), {"k"}, 0, 0, kRegisters},
      {entries_nk(16, 8, 64), b16x4, {"k"}, 0, 0, kRegisters},
      // A single operand A has but half of it: two shuffles instead of three.
      {entries_mk(8, 16, 16), a16, {"k"}, 2, 1, kRegisters},
      {entries_mk(8, 16, 16), a16, {"k", "m"}, 2, 1, kRegisters},
      // The order of n alone helps nothing.
      {entries_nk(8, 8, 32), b16x2, {"n"}, 3, 3, kRegisters},
      // m16n8k8, and 8-bit elements, four a register.
      {entries_mk(4, 16, 8), a8, {}, 1, 1, kRegisters},
      {entries_nk(8, 8, 32), b8x4, {}, 3, 3, kRegisters},
      {entries_nk(8, 8, 32), b8x4, {"k"}, 0, 0, kRegisters},
      {entries_mk(4, 16, 32, 4), a32, {}, 0, 0, kRegisters},
      {entries_mk(8, 16, 32, 4), a32, {}, 2, 1, kRegisters},
      {entries_mk(16, 16, 32, 4), a32, {}, 3, 3, kRegisters},
      {entries_nk(8, 8, 32, 4), b32, {}, 1, 1, kRegisters},
      {entries_nk(8, 8, 32, 4), b32, {"k"}, 0, 0, kRegisters},
      // Registers that are no power of two: three n-tiles, and six k-steps.
      {entries_nk(8, 24, 32), mma_b(Mma::m16n8k16, 3, 2), {"k"}, 0, 0, kRegisters},
      {entries_nk(8, 24, 32), mma_b(Mma::m16n8k16, 3, 2), {}, 9, 3, Fusion::shared},
      {entries_nk(4, 24, 16), mma_b(Mma::m16n8k16, 3, 1), {}, 3, 1, kRegisters},
      {entries_nk(4, 8, 96), mma_b(Mma::m16n8k16, 1, 6), {"k"}, 0, 0, kRegisters},
      // At the threshold and beyond: shared memory.
      {entries_nk(16, 8, 64), b16x4, {}, 6, 3, Fusion::shared},
      {entries_mk(8, 16, 32), mma_a(Mma::m16n8k16, 1, 2), {}, 6, 3, Fusion::shared},
  };
}

TEST(Fusion, KnownLayouts) {
  for (const Known& known : known_cases()) {
    SCOPED_TRACE(known.producer.name + " -> " + known.consumer.name);
    const Exchange found = solve(known.producer, known.consumer, {.free_axes = known.free_axes});
    EXPECT_EQ(fault_of(found, {known.free_axes.begin(), known.free_axes.end()}), "");
    EXPECT_EQ(static_cast<int>(found.shuffles.size()), known.shuffles);
    EXPECT_EQ(steps(found), known.steps);
    EXPECT_EQ(found.fewest, known.shuffles) << "not shown to be the minimum";
    EXPECT_EQ(enum_name(found.fusion), enum_name(known.fusion));
    EXPECT_EQ(selects(found) == 0, known.shuffles == 0);
  }
}

TEST(Fusion, ThePapersExchangeRegisterByRegister) {
  const Exchange found = solve(entries_mk(8, 16, 16), mma_a(Mma::m16n8k16));
  ASSERT_EQ(found.shuffles.size(), 3u);
  for (int s = 1; s <= 3; ++s) {
    const Shuffle& shuffle = found.shuffles[at(s - 1)];
    EXPECT_EQ(shuffle.mask, s);
    for (int t = 0; t < 32; ++t) {  // thread t sends the register that is its partner's number
      EXPECT_EQ(picked(shuffle.sent, t), t % 4 ^ s) << t;
      EXPECT_EQ(picked(found.results[at(t % 4 ^ s)], t), 4 + s - 1) << t;
    }
  }
  const auto groups = mini_warps(found);
  ASSERT_EQ(groups.size(), 8u);
  for (int g = 0; g < 8; ++g) {
    EXPECT_EQ(groups[at(g)], (std::vector<int>{4 * g, 4 * g + 1, 4 * g + 2, 4 * g + 3}));
    // Threads 2 and 3 do what threads 16 and 17 would in order: row 8 of the paper's example.
    EXPECT_EQ((std::set<int>(found.entries.begin() + 4 * g, found.entries.begin() + 4 * g + 4)),
              (std::set<int>{2 * g, 2 * g + 1, 2 * g + 16, 2 * g + 17}));
  }
}

// Without renumbering the same fragment takes every mask there is: the reason for it in the paper.
TEST(Fusion, PinnedThreadsKeepTheirEntries) {
  const Exchange found = solve(entries_mk(8, 16, 16), mma_a(Mma::m16n8k16), {.pinned = true});
  EXPECT_EQ(fault_of(found, {}), "");
  EXPECT_EQ(found.entries, counted(32));
  EXPECT_EQ(found.shuffles.size(), 31u);
  EXPECT_EQ(found.fusion, Fusion::shared);
  // Free axes help even so: each thread's entry to the thread itself.
  const Options free{.free_axes = {"n", "k"}, .pinned = true};
  const Exchange freed = solve(entries_nk(8, 8, 32), mma_b(Mma::m16n8k16, 1, 2), free);
  EXPECT_EQ(fault_of(freed, {"n", "k"}), "");
  EXPECT_EQ(freed.entries, counted(32));
  EXPECT_TRUE(freed.shuffles.empty());
}

TEST(Fusion, TheThresholdIsTheFewestShufflesThatGoThroughSharedMemory) {
  const auto fusion = [](int threshold) {
    return solve(entries_mk(8, 16, 16), mma_a(Mma::m16n8k16), {.shuffle_threshold = threshold})
        .fusion;
  };
  EXPECT_EQ(fusion(3), Fusion::shared);
  EXPECT_EQ(fusion(4), Fusion::registers);
  EXPECT_EQ(solve(entries_mk(2, 16, 16), mma_a(Mma::m16n8k16), {.shuffle_threshold = 0}).fusion,
            Fusion::shared);
}

// Entries along n pair other elements than B, which pairs along k: no register can be moved whole.
TEST(Fusion, OtherPairsOfElementsAreSaidToBeImpossible) {
  for (const bool free : {false, true}) {
    const Options options{.free_axes = free ? std::vector<std::string>{"k", "n"}
                                            : std::vector<std::string>{}};
    const Exchange found =
        solve(dequantized({"k", 16}, {"n", 16}, 8), mma_b(Mma::m16n8k16, 2), options);
    EXPECT_NE(found.impossible.find("repack"), std::string::npos);
    EXPECT_EQ(found.fusion, Fusion::shared);
    EXPECT_NE(draw(found).find("repack"), std::string::npos);
  }
}

TEST(Fusion, AxesAreMatchedByName) {
  FragmentLayout turned = with_axes(entries_nk(8, 8, 32), {{"k", 32}, {"n", 8}});
  EXPECT_NE(turned.elements, entries_nk(8, 8, 32).elements);
  const Exchange found = solve(turned, mma_b(Mma::m16n8k16, 1, 2));
  EXPECT_EQ(fault_of(found, {}), "");
  EXPECT_EQ(found.shuffles.size(), 3u);
}

TEST(Fusion, WhatIsNoLayoutIsRefused) {
  const FragmentLayout sound = mma_a(Mma::m16n8k16);
  const auto refused = [&](const std::function<void(FragmentLayout&)>& spoil,
                           const std::string& words) {
    FragmentLayout layout = sound;
    spoil(layout);
    EXPECT_NE(message_of([&] { validate(layout); }).find(words), std::string::npos) << words;
    message_of([&] { solve(sound, layout); });
    message_of([&] { solve(layout, sound); });
  };
  refused([](auto& l) { l.threads = 0; }, "0 threads");
  refused([](auto& l) { l.threads = 64; }, "64 threads");
  refused([](auto& l) { l.registers = 0; }, "0 registers");
  refused([](auto& l) { l.registers = 65; }, "65 registers");
  refused([](auto& l) { l.slots = 3; }, "3 elements a register");
  refused([](auto& l) { l.entry_registers = 3; }, "whole entries of 3");
  refused([](auto& l) { l.entry_registers = 0; }, "whole entries of 0");
  refused([](auto& l) { l.elements[5] = l.elements[6]; }, "at no place or at two");
  refused([](auto& l) { l.elements[5] = 256; }, "element 256");
  refused([](auto& l) { l.elements[5] = -1; }, "element -1");
  refused([](auto& l) { l.elements.pop_back(); }, "255 listed");
  refused([](auto& l) { l.axes[0].extent = 8; }, "a tile of 128 elements");
  refused([](auto& l) { l.axes[0].extent = 2147483647; }, "a tile of -1");
  refused([](auto& l) { l.axes[0].name = "k"; }, "two axes are named 'k'");
  EXPECT_NE(message_of([&] { solve(entries_nk(8, 8, 32), sound); }).find("another tile"),
            std::string::npos);
  EXPECT_NE(message_of([&] { solve(sound, sound, {.free_axes = {"q"}}); }).find("no axis 'q'"),
            std::string::npos);
  message_of([] { dequantized({"m", 16}, {"k", 12}, 8); });
  message_of([] { dequantized({"m", 1}, {"k", 16}, 8); });
  message_of([] { dequantized({"m", 16}, {"k", 16}, 3); });
  message_of([] { dequantized({"m", 16}, {"k", 16}, 0); });
  message_of([] { bit_linear("x", {{"e", 8}}, {1, 1, 1}, {1, 2}); });
  message_of([] { bit_linear("x", {{"e", 8}}, {1, 1, 1}, {1, 2, 3}); });
  message_of([] { bit_linear("x", {{"e", 8}}, {1, 1, 9}, {1, 2, 4}); });
}

// As PTX states them: groupID = lane / 4, threadID in group = lane % 4.
TEST(Fusion, MmaLayoutsAreThoseOfPtx) {
  const auto expect = [](const FragmentLayout& l, int lane, int r, int slot, int row, int k) {
    const int element = l.element(lane * l.registers + r, slot);
    EXPECT_EQ(coordinates(l.axes, element), (std::vector<int>{row, k})) << l.name << " r" << r;
  };
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, c = lane % 4;
    for (int i = 0; i < 8; ++i) {  // a0..a7: row + 8 for a2, a3, a6, a7; k + 8 from a4 on
      expect(mma_a(Mma::m16n8k16), lane, i / 2, i % 2, i % 4 >= 2 ? g + 8 : g,
             c * 2 + i % 2 + (i >= 4 ? 8 : 0));
    }
    for (int i = 0; i < 4; ++i) {  // b0..b3: k + 8 from b2 on
      expect(mma_b(Mma::m16n8k16), lane, i / 2, i % 2, g, c * 2 + i % 2 + (i >= 2 ? 8 : 0));
      expect(mma_a(Mma::m16n8k8), lane, i / 2, i % 2, i >= 2 ? g + 8 : g, c * 2 + i % 2);
    }
    for (int i = 0; i < 2; ++i) expect(mma_b(Mma::m16n8k8), lane, 0, i, g, c * 2 + i);
    for (int i = 0; i < 16; ++i) {  // a0..a15: row + 8 for a4..a7 and a12..a15; k + 16 from a8 on
      expect(mma_a(Mma::m16n8k32_s8), lane, i / 4, i % 4, i / 4 % 2 == 1 ? g + 8 : g,
             c * 4 + i % 4 + (i >= 8 ? 16 : 0));
    }
    for (int i = 0; i < 8; ++i) {
      expect(mma_b(Mma::m16n8k32_s8), lane, i / 4, i % 4, g, c * 4 + i % 4 + (i >= 4 ? 16 : 0));
    }
    // Second k-step of the second n-tile.
    expect(mma_b(Mma::m16n8k16, 2, 2), lane, 7, 1, 8 + g, 16 + 8 + c * 2 + 1);
  }
}

// What docs/explain.md shows.
TEST(Fusion, Drawing) {
  EXPECT_EQ(draw(solve(entries_mk(8, 16, 16), mma_a(Mma::m16n8k16))),
            R"(entries of 8 along k -> A of mma.m16n8k16
fusion in registers: 3 shuffles in 3 steps (bound 3), 21 selects; mini-warps: 8
  dequantizes r0       r1         r2         r3
  thread 0    m0 k0-1  m0 k2-3    m0 k4-5    m0 k6-7
  thread 1    m8 k0-1  m8 k2-3    m8 k4-5    m8 k6-7
  thread 2    m0 k8-9  m0 k10-11  m0 k12-13  m0 k14-15
  thread 3    m8 k8-9  m8 k10-11  m8 k12-13  m8 k14-15
  xor 1: 0.r1 <-> 1.r0, 2.r3 <-> 3.r2
  xor 2: 0.r2 <-> 2.r0, 1.r3 <-> 3.r1
  xor 3: 0.r3 <-> 3.r0, 1.r2 <-> 2.r1
  consumes    r0       r1       r2         r3
  thread 0    m0 k0-1  m8 k0-1  m0 k8-9    m8 k8-9
  thread 1    m0 k2-3  m8 k2-3  m0 k10-11  m8 k10-11
  thread 2    m0 k4-5  m8 k4-5  m0 k12-13  m8 k12-13
  thread 3    m0 k6-7  m8 k6-7  m0 k14-15  m8 k14-15
)");
  EXPECT_EQ(draw(solve(entries_nk(4, 8, 16), mma_b(Mma::m16n8k16), {.free_axes = {"k"}}), 2),
            R"(entries of 4 along k -> B of mma.m16n8k16
fusion in registers: 0 shuffles in 0 steps (bound 0), 0 selects; mini-warps: 32
order of k, which whoever shares it must follow: 0 1 8 9 4 5 12 13 2 3 10 11 6 7 14 15
  dequantizes r0       r1
  thread 0    n0 k0-1  n0 k2-3
  thread 1    n0 k8-9  n0 k10-11
  consumes    r0       r1
  thread 0    n0 k0-1  n0 k2-3
  thread 1    n0 k8-9  n0 k10-11
)");
}

}  // namespace
}  // namespace vqgen::fusion
