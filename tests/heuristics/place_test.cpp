// The rules of placement: registers, shared memory within the slack, copies. Each has a case with
// known figures, and laws over random profiles, formats and GPUs.
#include "heuristics/placement/place.h"

#include <gtest/gtest.h>

#include "core/problem/config.h"
#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/kernels/slice.h"
#include "heuristics/occupancy.h"
#include "heuristics/placement/plan_use.h"
#include "tests/heuristics/access_counts_random.h"
#include "tests/thirds.h"

namespace vqgen {
namespace {

Gemm product(int out_features, int in_features, const VqFormat& format, int rows = 4) {
  Gemm op;
  op.shape = {rows, out_features, in_features};
  op.weights = format;
  return op;
}

AttentionDecode attention(const VqFormat& keys, const VqFormat& values) {
  AttentionDecode op;
  op.shape = {.batch = 1, .query_heads = 32, .kv_heads = 8, .head_dim = 128, .tokens = 32768};
  op.keys = keys;
  op.values = values;
  return op;
}

std::string reasons_of(const Placed& placed, std::size_t i = 0) {
  std::string all;
  for (const std::string& reason : placed.operands.at(i).reasons) all += reason + "\n";
  return all;
}

bool says(const Placed& placed, const std::string& words, std::size_t i = 0) {
  return reasons_of(placed, i).find(words) != std::string::npos;
}

// 240 entries read 10 times and 16 read 400 times: mean 34.4, sigma 94.4, so 16 are above 317.6.
std::vector<std::int64_t> sixteen_hot() {
  std::vector<std::int64_t> counts(256, 10);
  std::fill_n(counts.begin(), 16, 400);
  return counts;
}

const VqFormat kOneStage{.vector_size = 4, .index_bits = 8};

class Registers : public testing::Test {
 protected:
  Placed placed(const std::vector<std::int64_t>& counts, std::optional<int> registers,
                const VqFormat& format = kOneStage) const {
    const Gemm op = product(4096, 4096, format);
    const std::vector<AccessCounts> profiles{profile_with(Operand::weights, format, 1, counts)};
    return place(choose(op, gpu, {.chooser = Chooser::rules}), op, gpu, profiles,
                 {.strategy = Strategy::paper, .registers = registers});
  }
  static int count(const Placed& placed) {
    return placement_of(placed.plan, Operand::weights)->registers;
  }
  GpuSpec gpu = find_gpu("h200");
};

TEST_F(Registers, HoldTheEntriesAboveMeanPlusThreeSigma) {
  const Placed all = placed(sixteen_hot(), 64);
  EXPECT_EQ(count(all), 16) << reasons_of(all);
  EXPECT_TRUE(says(all, "registers: 16 entries, which catch 72.7 %")) << reasons_of(all);
}

// Blocks of sliced_codebook hold what they look up whatever a profile says, also if a slice is not
// a whole register or check() would refuse the plan.
TEST_F(Registers, SlicesArePlacedNowhere) {
  const VqFormat format{.vector_size = 8, .index_bits = 8};
  const Gemm op = product(4096, 4096, format);
  const std::vector<AccessCounts> profiles{
      profile_with(Operand::weights, format, 1, sixteen_hot())};
  for (const int slices : {1, 3, 8, 16}) {
    const Plan plan = LinearSlicedCodebook{
        .columns_per_block = 4096, .entry_slices = slices, .rows_per_block = 4};
    const Placed placed = place(plan, op, gpu, profiles, {.strategy = Strategy::measured});
    EXPECT_EQ(placed.plan, plan) << slices;
    EXPECT_TRUE(placed.operands.empty());
  }
}

// 256 threads, 2 blocks per SM: 128 registers each.
TEST_F(Registers, AreLimitedByTheSlack) {
  EXPECT_EQ(count(placed(sixteen_hot(), 128 - 2 * 16)), 16);
  EXPECT_EQ(count(placed(sixteen_hot(), 128 - 2 * 16 + 1)), 15);
  EXPECT_EQ(count(placed(sixteen_hot(), 128 - 10)), 5);
  EXPECT_EQ(count(placed(sixteen_hot(), 127)), 0);
  EXPECT_EQ(count(placed(sixteen_hot(), 128)), 0);
}

TEST_F(Registers, AreLimitedByWhatCheckAllows) {
  const VqFormat stages{.vector_size = 8, .index_bits = 8, .num_codebooks = 2};
  EXPECT_EQ(count(placed(sixteen_hot(), 32, stages)), 8);  // 8 x 2 stages x 4 registers
}

TEST_F(Registers, WaitForTheCompiler) {
  const Placed before = placed(sixteen_hot(), std::nullopt);
  EXPECT_EQ(count(before), 0);
  EXPECT_TRUE(says(before, "16 entries are above mean + 3 sigma, and the slack is known once"));
}

TEST_F(Registers, NeedHotFirstNumbers) {
  std::vector<std::int64_t> counts = sixteen_hot();
  std::reverse(counts.begin(), counts.end());
  const Placed reversed = placed(counts, 64);
  EXPECT_EQ(count(reversed), 0);
  EXPECT_TRUE(says(reversed, "vqgen reorder")) << reasons_of(reversed);
  counts = sixteen_hot();
  std::swap(counts[3], counts[200]);  // nearly hot-first is enough
  EXPECT_EQ(count(placed(counts, 64)), 16);
}

TEST_F(Registers, AreNotWorthItForAFewAccesses) {
  std::vector<std::int64_t> counts(256, 100);
  counts[0] = 1000;  // the only one above mean + 3 sigma, 3.8 % of all
  const Placed few = placed(counts, 64);
  EXPECT_EQ(count(few), 0);
  EXPECT_TRUE(says(few, "catch 3.8 % of the accesses, less than the 6.2 %")) << reasons_of(few);
  counts[0] = 2000;  // 7.3 %
  EXPECT_EQ(count(placed(counts, 64)), 1);
}

// The default strategy puts no entry in a register, however hot it is.
TEST_F(Registers, AreForVqLlmAlone) {
  const Gemm op = product(4096, 4096, kOneStage);
  std::vector<std::int64_t> counts(256, 1);
  counts[0] = 1'000'000;
  const std::vector<AccessCounts> profiles{profile_with(Operand::weights, kOneStage, 1, counts)};
  for (const Strategy strategy : {Strategy::paper, Strategy::measured}) {
    const Placed found = place(choose(op, gpu, {.chooser = Chooser::rules}), op, gpu, profiles,
                               {.strategy = strategy, .registers = 32});
    EXPECT_EQ(count(found), strategy == Strategy::paper ? 1 : 0) << reasons_of(found);
  }
}

TEST_F(Registers, AreNoneWhereNothingIsHot) {
  EXPECT_EQ(count(placed(std::vector<std::int64_t>(256, 5), 64)), 0);
  EXPECT_EQ(count(placed(std::vector<std::int64_t>(256, 0), 64)), 0);
}

// 2 blocks per SM may take 255 registers each: 40 are free, and the keys' 16 entries take 32 of
// them.
TEST_F(Registers, OfKeysAndValuesAreSpentOnce) {
  VqFormat format = kOneStage;
  format.scope = Scope::head;
  const AttentionDecode op = attention(format, format);
  const std::vector<AccessCounts> profiles{profile_with(Operand::keys, format, 8, sixteen_hot()),
                                           profile_with(Operand::values, format, 8, sixteen_hot())};
  const Placed both = place(choose_plan(AttentionSimt{}, op, gpu), op, gpu, profiles,
                            {.strategy = Strategy::paper, .registers = 255 - 40});
  const auto& plan = std::get<AttentionSimt>(both.plan);
  EXPECT_EQ(plan.key_codebook.registers, 16) << reasons_of(both, 0);
  EXPECT_EQ(plan.value_codebook.registers, 4) << reasons_of(both, 1);
}

// The blocks that an SM can hold and that the grid has for it, with the codebooks as placed or all
// global.
int at_work(const Plan& plan, const Problem& problem, const GpuSpec& gpu, int registers) {
  const PlanUse use = plan_use(plan, problem);
  const std::int64_t given = (use.blocks + gpu.sms - 1) / gpu.sms;
  return static_cast<int>(std::min<std::int64_t>(
      occupancy(gpu, use.threads, registers, use.shared_bytes).blocks, given));
}

Plan all_global_of(Plan plan, const Problem& problem) {
  for (const OperandUse& use : plan_use(plan, problem).operands) {
    *placement_of(plan, use.operand) = all_global();
  }
  return plan;
}

std::vector<Problem> many_problems() {
  std::vector<Problem> problems;
  for (const int bits : {2, 8, 13}) {
    for (const int vector_size : {2, 4, 8}) {
      const VqFormat plain{.vector_size = vector_size, .index_bits = bits, .num_codebooks = 2};
      VqFormat head = plain;
      head.scope = Scope::head;
      VqFormat tile{.vector_size = vector_size, .index_bits = bits, .scope = Scope::tile};
      tile.tile_rows = tile.tile_columns = 256;
      problems.emplace_back(attention(head, plain));
      problems.emplace_back(product(1024, 2048, plain));
      problems.emplace_back(product(1000, 1024, tile, 16));
      Gemv gemv;
      gemv.shape = {1, 4096, 1024};
      gemv.weights = plain;
      problems.emplace_back(gemv);
    }
  }
  return problems;
}

TEST(Place, KeepsItsPromisesForRandomProfiles) {
  std::mt19937_64 random(7);
  std::uint64_t number = 0;
  for (const Problem& problem : many_problems()) {
    for (const std::string name :
         test::a_third({"h200", "a10", "t4"}, test::third_after(number++))) {
      const GpuSpec gpu = find_gpu(name);
      const std::vector<AccessCounts> profiles = random_profiles(problem, random);
      const Plan plan = choose(problem, gpu, {.chooser = Chooser::rules});
      const int registers = 32 + static_cast<int>(random() % 96);
      for (const Strategy strategy : {Strategy::paper, Strategy::measured}) {
        SCOPED_TRACE(name + " " + to_json(problem).dump());
        const PlaceOptions options{.strategy = strategy, .registers = registers};
        const Placed placed = place(plan, problem, gpu, profiles, options);
        const Verdict verdict = check(placed.plan, problem, gpu);
        ASSERT_TRUE(verdict.ok) << verdict.reason;
        EXPECT_EQ(place(placed.plan, problem, gpu, profiles, options).plan, placed.plan);
        for (const OperandPlacement& each : placed.operands) {
          EXPECT_EQ(each.placement, *placement_of(placed.plan, each.operand));
          EXPECT_FALSE(each.reasons.empty());
        }
        if (strategy == Strategy::measured) {
          for (const OperandPlacement& each : placed.operands) {
            EXPECT_EQ(each.placement.registers, 0);
          }
          continue;
        }
        // Neither shared memory nor registers cost a resident block, and there are no copies.
        int held = 0;
        for (const OperandUse& use : plan_use(placed.plan, problem).operands) {
          EXPECT_EQ(use.format.placement.replicated, 0);
          held += static_cast<int>(use.row_registers()) * use.format.placement.registers;
        }
        EXPECT_EQ(at_work(placed.plan, problem, gpu, registers + held),
                  at_work(all_global_of(plan, problem), problem, gpu, registers));
      }
    }
  }
}

// 4096 entries of 16 bytes: they do not all fit if a second block is to stay.
TEST(Place, PaperFillsTheSlackAndNoMore) {
  const VqFormat large{.vector_size = 8, .index_bits = 12};
  const Gemm op = product(8192, 4096, large);
  const GpuSpec gpu = find_gpu("a100");
  const std::vector<AccessCounts> profiles{
      profile_with(Operand::weights, large, 1, zipf_counts(4096, 0.7, true))};
  const PlaceOptions paper{.strategy = Strategy::paper, .registers = 64};
  const Placed placed =
      place(choose(op, gpu, {.chooser = Chooser::rules}), op, gpu, profiles, paper);
  Plan plan = placed.plan;
  int& shared = placement_of(plan, Operand::weights)->shared;
  ASSERT_GT(shared, 0) << reasons_of(placed);
  ASSERT_LT(shared, 4096) << reasons_of(placed);
  const int before = at_work(plan, op, gpu, 64);
  shared += 64;  // the granules of shared memory and of the layout
  EXPECT_LT(at_work(plan, op, gpu, 64), before);

  const auto all = [&](const PlaceOptions& options) {
    Plan spent = place(plan, op, gpu, profiles, options).plan;
    return placement_of(spent, Operand::weights)->shared;
  };
  EXPECT_EQ(all({.strategy = Strategy::measured, .registers = 64}), 4096);
}

TEST(Place, ASmallCodebookDoesNotGoShortOfALargeOne) {
  const VqFormat small{.vector_size = 4, .index_bits = 8, .scope = Scope::head};
  const VqFormat large{.vector_size = 8, .index_bits = 16, .scope = Scope::head};
  const GpuSpec gpu = find_gpu("h200");
  for (const bool keys_small : {true, false}) {
    const AttentionDecode op = attention(keys_small ? small : large, keys_small ? large : small);
    const Placed placed = place(choose(op, gpu, {.chooser = Chooser::rules}), op, gpu, {},
                                {.strategy = Strategy::paper});
    const Placement& keys = *placement_of(placed.plan, Operand::keys);
    const Placement& values = *placement_of(placed.plan, Operand::values);
    const Placement& of_small = keys_small ? keys : values;
    const Placement& of_large = keys_small ? values : keys;
    EXPECT_EQ(of_small.shared, 256);
    EXPECT_GT(of_large.shared, 4096);
    EXPECT_LT(of_large.shared, 65536);
  }
}

LinearMma fragments_of(const Gemm& op, const GpuSpec& gpu) {
  return std::get<LinearMma>(choose(op, gpu, {.chooser = Chooser::rules}));
}

// The cases that were timed on an H200 (conflicts.h).
TEST(Copies, AreMadeWhereTheyWonOnAnH200) {
  const GpuSpec gpu = find_gpu("h200");
  const VqFormat aqlm = find_format("aqlm-2x8", "test");
  for (const int outputs : {4096, 11008}) {
    EXPECT_EQ(fragments_of(product(outputs, 4096, aqlm), gpu).codebook, all_replicated(256, 8));
  }
  const Gemm tiles = product(4096, 4096, find_format("gptvq-2", "test"));
  LinearMma plan = fragments_of(tiles, gpu);
  EXPECT_EQ(plan.codebook, all_shared(256));
  // One codebook at a time leaves room for copies, but each is read too seldom to pay for them.
  plan.chunk_columns = 256;
  plan.splits = 2;
  ASSERT_TRUE(check(plan, tiles, gpu).ok);
  EXPECT_EQ(with_copies_where_they_win(plan, tiles, gpu), Plan(plan));
  LinearMma copied = plan;
  copied.codebook = all_replicated(256, 16);
  EXPECT_TRUE(check(copied, tiles, gpu).ok);
}

// A copy per lane would be 8; fewer copies still save passes if 8 would leave too few warps.
TEST(Copies, AreFewerWhereWarpsWouldGo) {
  const Gemm op = product(4096, 4096, find_format("aqlm-2x8", "test"));
  for (const char* name : {"t4", "a10", "rtx4090", "l40s", "a100"}) {
    EXPECT_LT(fragments_of(op, find_gpu(name)).codebook.copies, 8) << name;
  }
  EXPECT_EQ(fragments_of(op, find_gpu("a100")).codebook, all_replicated(256, 4));
}

// 4096 entries of 16 bytes: two copies take 128 KB, for which one operand has room. Short sequences
// read less than filling them takes.
TEST(Copies, OfOneLargeCodebookWhereSequencesAreLong) {
  const VqFormat format = find_format("vecinfer-d8b12", "test");
  AttentionDecode op{
      .shape = {.batch = 16, .query_heads = 32, .kv_heads = 8, .head_dim = 128, .tokens = 16384},
      .keys = format,
      .values = format};
  const auto copies = [&op] {
    const auto plan =
        std::get<AttentionMma>(choose(op, find_gpu("h200"), {.chooser = Chooser::rules}));
    return plan.key_codebook.copies * plan.value_codebook.copies;
  };
  EXPECT_EQ(copies(), 2);
  op.shape.tokens = 256;
  EXPECT_EQ(copies(), 1);
}

TEST(Copies, OfTheHottestWhereAllDoNotFit) {
  const VqFormat format{.vector_size = 8, .index_bits = 12};
  const Gemm op = product(16384, 4096, format);
  const GpuSpec gpu = find_gpu("h200");
  std::vector<std::int64_t> counts(4096, 1);
  std::fill_n(counts.begin(), 64, 100'000);
  const auto placed = [&](bool ordered) {
    std::vector<std::int64_t> numbered = counts;
    if (!ordered) std::reverse(numbered.begin(), numbered.end());
    const std::vector<AccessCounts> profiles{profile_with(Operand::weights, format, 1, numbered)};
    return place(choose(op, gpu, {.chooser = Chooser::rules}), op, gpu, profiles);
  };
  const Placed hot = placed(true);
  const Placement& placement = *placement_of(hot.plan, Operand::weights);
  EXPECT_GE(placement.replicated, 64) << reasons_of(hot);
  EXPECT_LT(placement.replicated, 4096);
  EXPECT_EQ(placement.copies, 8);
  EXPECT_EQ(placement.shared, 4096);
  const Placed cold = placed(false);
  EXPECT_EQ(*placement_of(cold.plan, Operand::weights), all_shared(4096));
}

TEST(Place, WhatNoPlacementHelpsComesBack) {
  GpuSpec tiny = find_gpu("t4");
  tiny.shared_bytes_per_block = 1024;
  const AttentionDecode op = attention(kOneStage, kOneStage);
  const Plan plan = propose(op, tiny, {.chooser = Chooser::rules});
  const Placed placed = place(plan, op, tiny, {});
  EXPECT_EQ(placed.plan, plan);
  EXPECT_TRUE(says(placed, "left as it was: needs"));
}

}  // namespace
}  // namespace vqgen
