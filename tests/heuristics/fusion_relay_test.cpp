// Single hops against every exchange there is, words passed on by third threads included: 4 threads
// x 2 registers gain nothing by relays, and with 3 registers some do, which docs/explain.md says.
#include <functional>

#include "tests/heuristics/fusion_check.h"

namespace vqgen::fusion {
namespace {

constexpr int kThreads = 4;

struct Trip {
  int from;
  int to;
};

// Whether shuffles of these masks, in order, carry all trips from number `next` on. A trip takes
// some of the shuffles; each brings a thread one word.
bool carries(const std::vector<int>& masks, const std::vector<Trip>& trips, std::size_t next,
             std::vector<std::vector<bool>>& busy) {
  if (next == trips.size()) return true;
  for (unsigned taken = 0; taken < 1u << masks.size(); ++taken) {
    std::vector<std::pair<std::size_t, int>> hops;
    int thread = trips[next].from;
    bool free = true;
    for (std::size_t i = 0; i < masks.size(); ++i) {
      if ((taken >> i & 1) == 0) continue;
      thread ^= masks[i];
      free = free && !busy[i][at(thread)];
      hops.emplace_back(i, thread);
    }
    if (thread != trips[next].to || !free) continue;
    for (const auto& [i, hop] : hops) busy[i][at(hop)] = true;
    const bool all = carries(masks, trips, next + 1, busy);
    for (const auto& [i, hop] : hops) busy[i][at(hop)] = false;
    if (all) return true;
  }
  return false;
}

bool any_masks_carry(const std::vector<Trip>& trips, std::vector<int> masks, int shuffles) {
  if (static_cast<int>(masks.size()) == shuffles) {
    std::vector<std::vector<bool>> busy(masks.size(), std::vector<bool>(kThreads, false));
    return carries(masks, trips, 0, busy);
  }
  for (int mask = 1; mask < kThreads; ++mask) {
    masks.push_back(mask);
    if (any_masks_carry(trips, masks, shuffles)) return true;
    masks.pop_back();
  }
  return false;
}

// The fewest shuffles, below `known`, of all seatings of the entries; `targets` has the consuming
// thread of each of the producer's words.
int fewest_with_relays(const std::vector<int>& targets, int registers, int known) {
  std::vector<int> seat = counted(kThreads);
  int fewest = known;
  do {
    std::vector<Trip> trips;
    for (std::size_t word = 0; word < targets.size(); ++word) {
      const int from = seat[word / at(registers)];
      if (from != targets[word]) trips.push_back({from, targets[word]});
    }
    for (int shuffles = 0; shuffles < fewest; ++shuffles) {
      if (any_masks_carry(trips, {}, shuffles)) fewest = shuffles;
    }
  } while (std::next_permutation(seat.begin(), seat.end()));
  return fewest;
}

int single_hops(const std::vector<int>& targets, int registers) {
  FragmentLayout consumer;
  consumer.axes = {{"e", kThreads * registers}};
  consumer.threads = kThreads;
  consumer.registers = registers;
  consumer.slots = 1;
  consumer.elements = counted(kThreads * registers);
  FragmentLayout producer = consumer;
  producer.entry_registers = registers;
  std::vector<int> filled(kThreads, 0);
  for (std::size_t word = 0; word < targets.size(); ++word) {
    producer.elements[word] = targets[word] * registers + filled[at(targets[word])]++;
  }
  const Exchange found = solve(producer, consumer);
  EXPECT_EQ(fault_of(found, {}), "");
  return static_cast<int>(found.shuffles.size());
}

TEST(FusionRelay, FourThreadsByTwoRegistersGainNothing) {
  std::vector<int> targets = {0, 0, 1, 1, 2, 2, 3, 3};
  int layouts = 0;
  do {
    const int found = single_hops(targets, 2);
    ASSERT_EQ(fewest_with_relays(targets, 2, found), found);
    ++layouts;
  } while (std::next_permutation(targets.begin(), targets.end()));
  EXPECT_EQ(layouts, 2520);
}

TEST(FusionRelay, AnUnstructuredLayoutOfThreeRegistersWouldGain) {
  const std::vector<int> targets = {1, 0, 3, 0, 2, 1, 0, 2, 1, 2, 3, 3};
  EXPECT_EQ(single_hops(targets, 3), 3);
  EXPECT_EQ(fewest_with_relays(targets, 3, 3), 2);
}

}  // namespace
}  // namespace vqgen::fusion
