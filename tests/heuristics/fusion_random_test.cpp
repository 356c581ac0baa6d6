// Layouts of no structure, by the thousand; and the judge itself: a schedule with any one fault
// seeded does not pass it.
#include <functional>

#include "tests/heuristics/fusion_check.h"

namespace vqgen::fusion {
namespace {

// A layout whose words are those of `base` in other places, its axes reordered where `orders` says
// so.
FragmentLayout scrambled(FragmentLayout base, const Orders& orders, std::mt19937& random) {
  std::vector<int> places = counted(base.words());
  shuffle_all(places, random);
  std::vector<int> elements;
  for (const int place : places) {
    for (int slot = 0; slot < base.slots; ++slot) {
      const std::vector<int> from = coordinates(base.axes, base.element(place, slot));
      int element = 0;
      for (std::size_t axis = 0; axis < from.size(); ++axis) {
        element = element * base.axes[axis].extent + orders[axis][at(from[axis])];
      }
      elements.push_back(element);
    }
  }
  base.elements = std::move(elements);
  return base;
}

TEST(FusionRandom, RandomLayoutsArriveWhereTheyAreConsumed) {
  std::mt19937 random(31);
  const auto any = [&](std::initializer_list<int> values) {
    return *(values.begin() + random() % values.size());
  };
  int shuffled = 0;
  for (int round = 0; round < 1500; ++round) {
    FragmentLayout consumer;
    consumer.name = "consumer";
    consumer.threads = 1 + static_cast<int>(random() % 32);
    consumer.registers = any({1, 2, 3, 4, 6, 8});
    consumer.slots = any({1, 2, 4});
    consumer.axes = {{"a", consumer.registers}, {"b", consumer.threads}, {"c", consumer.slots}};
    consumer.elements = counted(consumer.words() * consumer.slots);
    Orders orders;
    for (const Axis& axis : consumer.axes) orders.push_back(counted(axis.extent));
    std::set<std::string> free;
    for (const char* name : {"a", "b", "c"}) {
      if (random() % 2 == 0) free.insert(name);
    }
    // Half of the time the free axes stand in another order.
    for (std::size_t axis = 0; axis < 3 && random() % 2 == 0; ++axis) {
      if (free.contains(consumer.axes[axis].name)) shuffle_all(orders[axis], random);
    }
    FragmentLayout producer = scrambled(consumer, orders, random);
    do producer.entry_registers = 1 + static_cast<int>(random() % at(producer.registers));
    while (producer.registers % producer.entry_registers != 0);
    Options options{.free_axes = {free.begin(), free.end()}, .pinned = random() % 4 == 0};
    const Exchange found = solve(producer, consumer, options);
    ASSERT_EQ(fault_of(found, free), "") << round;
    ASSERT_LE(found.fewest, static_cast<int>(found.shuffles.size()));
    shuffled += !found.shuffles.empty();
  }
  EXPECT_GT(shuffled, 375);
  EXPECT_LT(shuffled, 1125);
}

// Every single change of a schedule is found.
TEST(FusionRandom, TheJudgeFindsEverySeededFault) {
  const Exchange sound = solve(dequantized({"n", 8}, {"k", 32}, 8), mma_b(Mma::m16n8k16, 1, 2));
  ASSERT_EQ(fault_of(sound, {}), "");
  int seeded = 0;
  const auto expect_found = [&](const std::function<void(Exchange&)>& spoil) {
    Exchange spoilt = sound;
    spoil(spoilt);
    EXPECT_NE(fault_of(spoilt, {}), "") << seeded;
    ++seeded;
  };
  for (std::size_t s = 0; s < sound.shuffles.size(); ++s) {
    for (int bit = 0; bit < 5; ++bit) {
      expect_found([&](Exchange& e) { e.shuffles[s].mask ^= 1 << bit; });
    }
    for (std::size_t p = 0; p < sound.shuffles[s].sent.size(); ++p) {
      expect_found([&](Exchange& e) { e.shuffles[s].sent[p].source ^= 1; });
      expect_found([&](Exchange& e) {  // one thread sends nothing
        e.shuffles[s].sent[p].threads &= e.shuffles[s].sent[p].threads - 1;
      });
    }
  }
  for (std::size_t r = 0; r < sound.results.size(); ++r) {
    for (std::size_t p = 0; p < sound.results[r].size(); ++p) {
      expect_found([&](Exchange& e) { e.results[r][p].source ^= 1; });
      expect_found([&](Exchange& e) { e.results[r][p].threads &= e.results[r][p].threads - 1; });
      expect_found([&](Exchange& e) {
        std::swap(e.results[r][p].threads, e.results[r][(p + 1) % e.results[r].size()].threads);
      });
    }
  }
  for (std::size_t i = 1; i < sound.entries.size(); ++i) {
    expect_found([&](Exchange& e) { std::swap(e.entries[0], e.entries[i]); });
    expect_found([&](Exchange& e) { e.entries[i] = e.entries[0]; });
  }
  expect_found([](Exchange& e) { std::swap(e.orders[1][3], e.orders[1][4]); });
  EXPECT_GT(seeded, 100);
}

}  // namespace
}  // namespace vqgen::fusion
