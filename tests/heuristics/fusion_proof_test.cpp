// The solver against brute force: all bijections of tiny fragments, all seatings of up to 8
// entries, all orders of two small axes.
#include <functional>
#include <map>

#include "tests/heuristics/fusion_check.h"

namespace vqgen::fusion {
namespace {

// One element a register, on one axis of the given extents.
FragmentLayout plain(std::vector<Axis> axes, int threads, int registers, int entry_registers,
                     std::vector<int> elements) {
  FragmentLayout layout;
  layout.name = "plain";
  layout.axes = std::move(axes);
  layout.threads = threads;
  layout.registers = registers;
  layout.slots = 1;
  layout.entry_registers = entry_registers;
  layout.elements = std::move(elements);
  return layout;
}

// Calls visit with the thread of each entry, for all ways to give each thread as many.
void for_each_seating(int entries, int threads,
                      const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> thread_of;
  for (int i = 0; i < entries; ++i) thread_of.push_back(i / (entries / threads));
  do visit(thread_of);
  while (std::next_permutation(thread_of.begin(), thread_of.end()));
}

// Shuffles of single hops for one seating: for each mask, what the thread that gets most by it
// gets.
int shuffles_for(const FragmentLayout& producer, const FragmentLayout& consumer,
                 const std::vector<int>& thread_of) {
  std::map<int, std::map<int, int>> got;  // [mask][thread]
  for (int word = 0; word < consumer.words(); ++word) {
    for (int source = 0; source < producer.words(); ++source) {
      if (producer.element(source, 0) != consumer.element(word, 0)) continue;
      const int thread = word / consumer.registers;
      const int mask = thread ^ thread_of[at(source / producer.entry_registers)];
      if (mask != 0) ++got[mask][thread];
    }
  }
  int shuffles = 0;
  for (const auto& [mask, threads] : got) {
    int most = 0;
    for (const auto& [thread, words] : threads) most = std::max(most, words);
    shuffles += most;
  }
  return shuffles;
}

int fewest_by_brute_force(const FragmentLayout& producer, const FragmentLayout& consumer) {
  int fewest = 1000;
  for_each_seating(producer.entries(), producer.threads, [&](const std::vector<int>& thread_of) {
    fewest = std::min(fewest, shuffles_for(producer, consumer, thread_of));
  });
  return fewest;
}

void expect_minimal(const FragmentLayout& producer, const FragmentLayout& consumer, bool pinned) {
  const Exchange found = solve(producer, consumer, {.pinned = pinned});
  ASSERT_EQ(fault_of(found, {}), "");
  ASSERT_LE(found.fewest, static_cast<int>(found.shuffles.size()));
  std::vector<int> own;
  for (int entry = 0; entry < producer.entries(); ++entry) {
    own.push_back(entry / producer.entries_per_thread());
  }
  ASSERT_EQ(
      static_cast<int>(found.shuffles.size()),
      pinned ? shuffles_for(producer, consumer, own) : fewest_by_brute_force(producer, consumer));
}

TEST(FusionProof, AllBijectionsOfTwoThreadsByTwoRegisters) {
  std::vector<int> elements = counted(4), wanted = counted(4);
  do {
    do {
      for (const int entry : {1, 2}) {
        for (const bool pinned : {false, true}) {
          expect_minimal(plain({{"e", 4}}, 2, 2, entry, elements),
                         plain({{"e", 4}}, 2, 2, 1, wanted), pinned);
        }
      }
    } while (std::next_permutation(wanted.begin(), wanted.end()));
  } while (std::next_permutation(elements.begin(), elements.end()));
}

// The names of elements do not matter, so the consumer may be the natural one.
TEST(FusionProof, AllBijectionsOfFourThreadsByTwoRegisters) {
  const FragmentLayout consumer = plain({{"e", 8}}, 4, 2, 1, counted(8));
  std::vector<int> elements = counted(8);
  do {
    expect_minimal(plain({{"e", 8}}, 4, 2, 2, elements), consumer, false);
    if (HasFatalFailure()) return;
  } while (std::next_permutation(elements.begin(), elements.end()));
}

TEST(FusionProof, RandomFragmentsOfUpToEightEntriesAreMinimal) {
  std::mt19937 random(5);
  for (const auto& [threads, registers, entry] : std::vector<std::array<int, 3>>{{2, 4, 2},
                                                                                 {2, 3, 3},
                                                                                 {2, 8, 2},
                                                                                 {3, 2, 2},
                                                                                 {3, 4, 2},
                                                                                 {4, 4, 4},
                                                                                 {4, 4, 2},
                                                                                 {4, 3, 3},
                                                                                 {5, 3, 3},
                                                                                 {6, 2, 2}}) {
    for (int round = 0; round < 60; ++round) {
      std::vector<int> elements = counted(threads * registers);
      shuffle_all(elements, random);
      const Axis axis{"e", threads * registers};
      expect_minimal(plain({axis}, threads, registers, entry, elements),
                     plain({axis}, threads, registers, 1, counted(axis.extent)), round % 4 == 3);
      if (HasFatalFailure()) return;
    }
  }
}

// 4 threads x 2 registers on axes of 4 and 2: all orders tried one by one.
TEST(FusionProof, ZeroShufflesAreFoundWhereAnyOrderGivesThem) {
  std::mt19937 random(23);
  int zeros = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::vector<Axis> axes = {{"a", 4}, {"b", 2}};
    std::vector<int> given = counted(8), wanted = counted(8);
    shuffle_all(given, random);
    shuffle_all(wanted, random);
    const FragmentLayout producer = plain(axes, 4, 2, 2, given);
    const bool b_free = round % 2 == 1;
    bool zero = false;
    std::vector<int> a = counted(4), b = counted(2);
    do {
      do {
        std::vector<int> ordered;
        for (const int element : wanted) {
          ordered.push_back(a[at(element / 2)] * 2 + b[at(element % 2)]);
        }
        zero = zero || fewest_by_brute_force(producer, plain(axes, 4, 2, 1, ordered)) == 0;
      } while (b_free && std::next_permutation(b.begin(), b.end()));
    } while (std::next_permutation(a.begin(), a.end()));
    Options options{.free_axes = {"a"}};
    if (b_free) options.free_axes.push_back("b");
    const Exchange found = solve(producer, plain(axes, 4, 2, 1, wanted), options);
    ASSERT_EQ(fault_of(found, {options.free_axes.begin(), options.free_axes.end()}), "");
    ASSERT_EQ(found.shuffles.empty(), zero) << round;
    zeros += zero;
  }
  EXPECT_GT(zeros, 100);
  EXPECT_LT(zeros, 2900);
}

}  // namespace
}  // namespace vqgen::fusion
