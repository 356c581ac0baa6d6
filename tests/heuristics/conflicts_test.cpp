// The bank-conflict model against all draws of a phase, its known figures and its laws.
#include "heuristics/placement/conflicts.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/heuristics/access_counts_random.h"

namespace vqgen {
namespace {

constexpr double kSampling = 0.03;  // three standard errors

VqFormat format_of(int vector_size, int index_bits, int num_codebooks = 1) {
  return {.vector_size = vector_size, .index_bits = index_bits, .num_codebooks = num_codebooks};
}

// The expectation over every draw of 8 lanes of 16 bytes, with addresses and banks in bytes.
double by_enumeration(const SharedTable& table, const std::vector<double>& shares) {
  constexpr int kLanes = 8;
  const auto entries = static_cast<int>(shares.size());
  std::vector<int> drawn(kLanes, 0);
  double expected = 0;
  while (true) {
    double probability = 1;
    std::map<int, std::set<int>> words_of_bank;  // first word of an entry: banks follow in step
    std::size_t passes = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      const int entry = drawn[static_cast<std::size_t>(lane)];
      probability *= shares[static_cast<std::size_t>(entry)];
      if (entry < table.range.begin || entry >= table.range.end) continue;
      const int row = (entry - table.range.begin) * table.num_codebooks * table.copies * 16;
      const int address = row + lane % table.copies * 16;
      auto& words = words_of_bank[address / 4 % 32];
      words.insert(address);
      passes = std::max(passes, words.size());
    }
    expected += probability * static_cast<double>(passes);
    std::size_t digit = 0;
    while (digit < drawn.size() && ++drawn[digit] == entries) drawn[digit++] = 0;
    if (digit == drawn.size()) return expected;
  }
}

TEST(Conflicts, AgreeWithEveryDraw) {
  const std::vector<std::vector<std::int64_t>> all_counts{
      {1, 1, 1, 1}, {70, 20, 9, 1}, {0, 1, 0, 1}, {1, 0, 0, 99}};
  for (const auto& counts : all_counts) {
    double sum = 0;
    for (const std::int64_t count : counts) sum += static_cast<double>(count);
    std::vector<double> shares;
    for (const std::int64_t count : counts) shares.push_back(static_cast<double>(count) / sum);
    const Accesses accesses(profile_with(Operand::keys, format_of(8, 2), 1, counts));
    for (const int num_codebooks : {1, 2, 4, 8}) {
      for (const int copies : {1, 2, 8}) {
        for (const vq::EntryRange range : {vq::EntryRange{0, 4}, {1, 3}, {2, 4}, {0, 1}}) {
          const SharedTable table{16, num_codebooks, copies, range};
          EXPECT_NEAR(conflict_factor(table, accesses), by_enumeration(table, shares), kSampling)
              << num_codebooks << " stages, " << copies << " copies, from " << range.begin;
        }
      }
    }
  }
}

TEST(Conflicts, OfEvenEntriesAreExact) {
  for (const int num_codebooks : {1, 2, 3, 8}) {
    for (const int copies : {1, 2, 4, 8, 16}) {
      for (const vq::EntryRange range : {vq::EntryRange{0, 3}, {1, 3}, {2, 3}}) {
        const SharedTable table{16, num_codebooks, copies, range};
        EXPECT_NEAR(conflict_factor(table, Accesses(3)),
                    by_enumeration(table, std::vector<double>(3, 1.0 / 3)), 1e-9)
            << num_codebooks << " stages, " << copies << " copies, from " << range.begin;
      }
    }
  }
  // Two units equal a table of twice the entries if tables have no gaps.
  EXPECT_DOUBLE_EQ(
      conflict_factor({.entry_bytes = 4, .range = {0, 256}, .lane_units = 2}, Accesses(256)),
      conflict_factor({.entry_bytes = 4, .range = {0, 512}}, Accesses(512)));
}

// Balls thrown into an equal number of bins: entries of 16, 8 and 4 bytes.
TEST(Conflicts, OfManyUniformEntriesAreTheKnownOnes) {
  const Accesses accesses(65536);
  EXPECT_NEAR(conflict_factor({.entry_bytes = 16, .range = {0, 65536}}, accesses), 2.6, 0.06);
  EXPECT_NEAR(conflict_factor({.entry_bytes = 8, .range = {0, 65536}}, accesses), 3.08, 0.06);
  EXPECT_NEAR(conflict_factor({.entry_bytes = 4, .range = {0, 65536}}, accesses), 3.53, 0.06);
}

// Each of two stages has half of the slots: 8 lanes hit 4 slots.
TEST(Conflicts, StagesShareTheSlots) {
  const Accesses accesses(65536);
  const SharedTable table{.entry_bytes = 16, .num_codebooks = 2, .range = {0, 65536}};
  EXPECT_NEAR(conflict_factor(table, accesses), 3.5, 0.1);
}

TEST(Conflicts, ACopyALaneLeavesNone) {
  for (const int bytes : {4, 8, 16}) {
    for (const int num_codebooks : {1, 2, 3}) {
      const SharedTable table{bytes, num_codebooks, 128 / bytes, {0, 256}};
      EXPECT_EQ(conflict_factor(table, Accesses(256)), 1.0);
    }
  }
}

TEST(Conflicts, LanesThatWantOneEntryDoNotWait) {
  std::vector<std::int64_t> counts(256, 0);
  counts[7] = 5;
  const Accesses accesses(profile_with(Operand::keys, format_of(4, 8), 3, counts));
  EXPECT_EQ(conflict_factor({.entry_bytes = 8, .range = {0, 256}}, accesses), 1.0);
  EXPECT_EQ(conflict_factor({.entry_bytes = 8, .range = {8, 256}}, accesses), 0.0);
  EXPECT_EQ(conflict_factor({.entry_bytes = 8, .range = {9, 9}}, accesses), 0.0);
}

// Each of two units has one hot entry in the same slot: the phase takes two passes if the lanes
// want both.
TEST(Conflicts, EqualEntriesOfDifferentUnitsAreDifferent) {
  std::vector<std::int64_t> counts(256, 0);
  counts[7] = 5;
  const Accesses accesses(profile_with(Operand::keys, format_of(8, 8), 2, counts));
  SharedTable table{.entry_bytes = 16, .range = {0, 256}, .lane_units = 2};
  const double both = 1 - 2 * std::pow(0.5, 8);
  EXPECT_NEAR(conflict_factor(table, accesses), 1 + both, kSampling);
  table.range = {0, 9};  // tables of 9 x 16 bytes: another slot
  EXPECT_EQ(conflict_factor(table, accesses), 1.0);
}

TEST(Conflicts, UniformIsWhatEqualAndMissingCountsSay) {
  const VqFormat format = format_of(4, 6);
  const SharedTable table{8, 1, 1, {0, 64}};
  const double uniform = conflict_factor(table, Accesses(64));
  for (const std::int64_t count : {0, 3}) {
    const Accesses accesses(
        profile_with(Operand::keys, format, 2, std::vector<std::int64_t>(64, count)));
    EXPECT_NEAR(conflict_factor(table, accesses), uniform, kSampling);
    EXPECT_DOUBLE_EQ(accesses.share(0, 16), 0.25);
  }
}

TEST(Conflicts, SharesAreThoseOfTheCounts) {
  AccessCounts profile = profile_with(Operand::keys, format_of(8, 2), 1, {6, 2, 1, 1});
  profile.units = 2;
  profile.counts.insert(profile.counts.end(),
                        {0, 0, 0, 30});  // three times the first unit's accesses
  const Accesses accesses(profile);
  EXPECT_DOUBLE_EQ(accesses.share(0, 1), 6.0 / 40);
  EXPECT_DOUBLE_EQ(accesses.share(1, 3), 3.0 / 40);
  EXPECT_DOUBLE_EQ(accesses.share(3, 4), 31.0 / 40);
  EXPECT_DOUBLE_EQ(accesses.share(0, 4), 1.0);
  EXPECT_EQ(accesses.share(2, 2), 0);
  int first = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    first += accesses.codebook(i * (~std::uint64_t{0} / 1000)) == 0 ? 1 : 0;
  }
  EXPECT_NEAR(first, 250, 2);
}

TEST(Conflicts, PassesCountLookupsAndFills) {
  OperandUse use;
  use.format.vector_size = 8;
  use.format.index_bits = 8;
  use.format.num_codebooks = 2;
  use.units = 3;
  use.lookups = 8000;
  use.fills = 10;
  const Accesses accesses(256);
  // 1000 phases without conflict; filling writes 3 x 2 x 256 x 8 slots of 16 bytes, 8 per pass, ten
  // times.
  EXPECT_DOUBLE_EQ(shared_passes(use, all_replicated(256, 8), accesses), 1000 + 10 * 1536);
  EXPECT_DOUBLE_EQ(shared_passes(use, all_global(), accesses), 0);
  const double once = shared_passes(use, all_shared(256), accesses);
  const double conflicts = conflict_factor(
      {.entry_bytes = 16, .num_codebooks = 2, .range = {0, 256}}, accesses, kPlacementPhases);
  EXPECT_DOUBLE_EQ(once, 1000 * conflicts + 10 * 192);
  // The two levels are visited one after the other.
  EXPECT_GT(shared_passes(use, {.replicated = 128, .copies = 8, .shared = 256}, accesses),
            1000 * 1.9);
}

}  // namespace
}  // namespace vqgen
