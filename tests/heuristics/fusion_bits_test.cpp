// The solver on layouts that are linear in bits, where what it finds is the minimum over every
// exchange: all bit permutations of 5 and 6 bits with all free axes, and random invertible
// matrices.
#include <cstdio>

#include "tests/heuristics/fusion_check.h"

namespace vqgen::fusion {
namespace {

// Bit permutations: place bits are slot, registers, thread; element bits are axis b (low), axis a.
struct BitCase {
  BitCounts bits;
  int a_bits;
  int b_bits;
  int count() const { return a_bits + b_bits; }
};

FragmentLayout permuted(const BitCase& c, const std::vector<int>& element_bits) {
  std::vector<int> images;
  for (const int bit : element_bits) images.push_back(1 << bit);
  return bit_linear("bits", {{"a", 1 << c.a_bits}, {"b", 1 << c.b_bits}}, c.bits, images);
}

// The fewest shuffles of all orders that permute the bits of free axes, by counting which thread
// bits of the consumer are bits within an entry; -1 where slots never agree.
int fewest_over_bit_orders(const BitCase& c, const std::vector<int>& producer,
                           const std::vector<int>& consumer, int entry_bits, bool a_free,
                           bool b_free) {
  std::vector<int> low = counted(c.b_bits), high = counted(c.a_bits);
  int fewest = -1;
  do {
    do {
      int clashes = 0;
      bool agree = true;
      for (int place = 0; place < c.count(); ++place) {
        const int bit = consumer[at(place)];
        const int data = bit < c.b_bits ? low[at(bit)] : c.b_bits + high[at(bit - c.b_bits)];
        const auto from =
            static_cast<int>(std::find(producer.begin(), producer.end(), data) - producer.begin());
        if (place < c.bits.slot || from < c.bits.slot) agree = agree && place == from;
        clashes += place >= c.bits.slot + c.bits.registers && from < c.bits.slot + entry_bits;
      }
      const int registers = 1 << c.bits.registers;
      const int shuffles = registers - (registers >> clashes);
      if (agree && (fewest < 0 || shuffles < fewest)) fewest = shuffles;
    } while (a_free && std::next_permutation(high.begin(), high.end()));
  } while (b_free && std::next_permutation(low.begin(), low.end()));
  return fewest;
}

// All pairs of bit permutations, up to a renaming of both layouts' bits within an axis.
void expect_all_bit_permutations(const BitCase& c, const std::vector<int>& entry_bits) {
  int solved = 0;
  std::vector<int> producer = counted(c.count());
  do {
    const auto position = [&](int bit) {
      return std::find(producer.begin(), producer.end(), bit) - producer.begin();
    };
    bool first_of_its_class = true;
    for (int bit = 1; bit < c.count(); ++bit) {
      if (bit != c.b_bits && position(bit - 1) > position(bit)) first_of_its_class = false;
    }
    if (!first_of_its_class) continue;
    std::vector<int> consumer = counted(c.count());
    do {
      for (int free = 0; free < 4; ++free) {
        for (const int entry : entry_bits) {
          FragmentLayout from = permuted(c, producer);
          from.entry_registers = 1 << entry;
          Options options;
          if ((free & 1) != 0) options.free_axes.push_back("a");
          if ((free & 2) != 0) options.free_axes.push_back("b");
          const Exchange found = solve(from, permuted(c, consumer), options);
          const int expected = fewest_over_bit_orders(c, producer, consumer, entry, (free & 1) != 0,
                                                      (free & 2) != 0);
          ++solved;
          if (expected < 0) {
            ASSERT_FALSE(found.impossible.empty());
            continue;
          }
          ASSERT_EQ(fault_of(found, {options.free_axes.begin(), options.free_axes.end()}), "");
          ASSERT_EQ(static_cast<int>(found.shuffles.size()), expected);
          ASSERT_EQ(found.fewest, expected);
        }
      }
    } while (std::next_permutation(consumer.begin(), consumer.end()));
  } while (std::next_permutation(producer.begin(), producer.end()));
  std::printf("%d exchanges of %d bits\n", solved, c.count());
}

TEST(FusionBits, AllBitPermutationsOfFiveBits) {
  expect_all_bit_permutations({{1, 2, 2}, 3, 2}, {0, 1, 2});
  expect_all_bit_permutations({{0, 2, 3}, 2, 3}, {1, 2});
  expect_all_bit_permutations({{2, 1, 2}, 4, 1}, {1});
}

TEST(FusionBits, AllBitPermutationsOfSixBits) {
  expect_all_bit_permutations({{1, 2, 3}, 3, 3}, {2});
}

// Pinned: no shuffles exactly where some order of bits puts each thread bit where it is.
TEST(FusionBits, PinnedBitPermutationsFindZero) {
  const BitCase c{{0, 2, 2}, 2, 2};
  std::vector<int> producer = counted(4);
  int zeros = 0;
  do {
    std::vector<int> consumer = counted(4);
    do {
      bool zero = true;
      for (int place = 2; place < 4; ++place) {
        zero = zero && producer[at(place)] / 2 == consumer[at(place)] / 2;
      }
      const Options options{.free_axes = {"a", "b"}, .pinned = true};
      const Exchange found = solve(permuted(c, producer), permuted(c, consumer), options);
      ASSERT_EQ(fault_of(found, {"a", "b"}), "");
      ASSERT_EQ(found.shuffles.empty(), zero);
      zeros += zero;
    } while (std::next_permutation(consumer.begin(), consumer.end()));
  } while (std::next_permutation(producer.begin(), producer.end()));
  EXPECT_GT(zeros, 0);
}

// Invertible bit matrices: the bound is reached whatever they are.
TEST(FusionBits, RandomBitLinearLayoutsReachTheBound) {
  std::mt19937 random(17);
  const auto matrix = [&](int bits) {
    std::vector<int> images;
    for (int bit = 0; bit < bits; ++bit) images.push_back(1 << bit);
    for (int i = 0; i < 40; ++i) {
      const auto a = random() % at(bits), b = random() % at(bits);
      if (a != b) images[a] ^= images[b];
    }
    return images;
  };
  for (int round = 0; round < 1500; ++round) {
    const BitCounts bits{0, 1 + static_cast<int>(random() % 4), 1 + static_cast<int>(random() % 5)};
    const std::vector<Axis> axes = {{"e", 1 << (bits.registers + bits.thread)}};
    FragmentLayout producer = bit_linear("p", axes, bits, matrix(bits.registers + bits.thread));
    producer.entry_registers = 1 << random() % (at(bits.registers) + 1);
    const Exchange found =
        solve(producer, bit_linear("c", axes, bits, matrix(bits.registers + bits.thread)));
    ASSERT_EQ(fault_of(found, {}), "");
    ASSERT_EQ(static_cast<int>(found.shuffles.size()), found.fewest);
  }
}

}  // namespace
}  // namespace vqgen::fusion
