// The fusion of GEMMs: the paper's choice, explain's drawing of a plan, and tiles in shared memory
// without bank conflicts.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include <vq/kernels/linear_mma/plan.h>

#include "core/profiles.h"
#include "heuristics/explain.h"
#include "heuristics/kernels/slice.h"
#include "heuristics/papers/papers.h"

namespace vqgen {
namespace {

TEST(LinearFusion, TheThresholdDecidesForThePaper) {
  const std::map<int, int> shuffles{{2, 0}, {4, 2}, {8, 3}};
  for (const auto& [v, count] : shuffles) {
    EXPECT_EQ(fusion_by_shuffles(v), LinearFusion::registers) << v;
    EXPECT_EQ(fusion_by_shuffles(v, count + 1), LinearFusion::registers) << v;
    EXPECT_EQ(fusion_by_shuffles(v, count), LinearFusion::shared) << v;
  }
}

Gemm product(const char* format) {
  Gemm op;
  op.shape = {.rows = 8, .out_features = 512, .in_features = 1024};
  op.weights = find_format(format, "test");
  return op;
}

TEST(LinearFusion, ThePaperExchangesAndOursPermutes) {
  const GpuSpec gpu = find_gpu("h200");
  for (const char* format : {"aqlm-2x8", "gptvq-2", "quip-4"}) {
    const Gemm op = product(format);
    LinearMma plan = choose_plan(LinearMma{}, op, gpu);
    ASSERT_TRUE(check(plan, op, gpu).ok);
    EXPECT_EQ(plan.fusion, LinearFusion::permute);
    const Plan papers = with_paper_fusion(plan, op, gpu);
    EXPECT_TRUE(check(papers, op, gpu).ok);
    plan.fusion = LinearFusion::registers;
    EXPECT_EQ(papers, Plan(plan));
  }
  const Gemm op = product("gptvq-2");
  const Plan lanes = choose_plan(LinearSimt{}, op, gpu);
  EXPECT_EQ(with_paper_fusion(lanes, op, gpu), lanes);
}

// Four lanes that share octets of 8 words per load each hold 32 words: too many to stream.
TEST(LinearFusion, WhatCheckRefusesGoesThroughSharedMemory) {
  const GpuSpec gpu = find_gpu("h200");
  Gemm op;
  op.shape = {.rows = 8, .out_features = 512, .in_features = 1024};
  op.weights = {.vector_size = 2, .index_bits = 16, .num_codebooks = 4, .scope = Scope::tensor};
  LinearMma plan{.outputs_per_warp = 16};
  plan.chunk_columns = 64;
  ASSERT_TRUE(check(plan, op, gpu).ok) << check(plan, op, gpu).reason;
  plan.fusion = LinearFusion::registers;
  const Verdict verdict = check(plan, op, gpu);
  EXPECT_FALSE(verdict.ok);
  EXPECT_NE(verdict.reason.find("32 words"), std::string::npos) << verdict.reason;
  EXPECT_NE(verdict.reason.find("another fusion"), std::string::npos) << verdict.reason;
  plan.fusion = LinearFusion::permute;
  EXPECT_EQ(std::get<LinearMma>(with_paper_fusion(plan, op, gpu)).fusion, LinearFusion::shared);
}

TEST(LinearFusion, ExplainDrawsTheChosenOne) {
  const Gemm op = product("aqlm-2x8");
  LinearMma plan;
  const auto text_of = [&](LinearFusion chosen) {
    plan.fusion = chosen;
    std::string text;
    for (const std::string& line : fusion_lines(plan, op)) text += line + "\n";
    return text;
  };
  const auto has = [](const std::string& text, const char* words) {
    return text.find(words) != std::string::npos;
  };
  const std::string permuted = text_of(LinearFusion::permute);
  EXPECT_TRUE(has(permuted, "0 shuffles between") && has(permuted, "order of k,")) << permuted;
  const std::string exchanged = text_of(LinearFusion::registers);
  EXPECT_TRUE(has(exchanged, "6 shuffles between lookup and tensor core, 3 per mma"));
  EXPECT_TRUE(has(exchanged, "xor 3: ") && !has(exchanged, "order of k,")) << exchanged;
  const std::string shared = text_of(LinearFusion::shared);
  EXPECT_TRUE(has(shared, "1024 bytes of shared memory per warp")) << shared;
  EXPECT_TRUE(has(shared, "fusion in shared memory instead of 6 shuffles"));
  EXPECT_TRUE(has(shared, "dequantizes") && !has(shared, "xor")) << shared;
}

// Octets of 16 bytes that shared memory serves at once are in 8 different groups of 4 banks.
TEST(LinearFusion, TilesHaveNoBankConflicts) {
  const auto expect_apart = [](const std::vector<int>& places) {
    std::set<int> groups;
    for (const int place : places) groups.insert(place % 8);
    EXPECT_EQ(groups.size(), 8u);
  };
  std::set<int> places;
  for (int at_once = 0; at_once < 4; ++at_once) {
    std::vector<int> stored, pairs, halves;
    for (int i = 0; i < 8; ++i) {
      stored.push_back(vq::tile_place(at_once * 2 + i / 4, i % 4));
      pairs.push_back(vq::tile_place(i, at_once));
      halves.push_back(vq::tile_place(i / 2, i % 2 * 2 + at_once % 2));
    }
    places.insert(stored.begin(), stored.end());
    expect_apart(stored);
    expect_apart(pairs);
    expect_apart(halves);
  }
  EXPECT_EQ(places.size(), 32u);
  EXPECT_EQ(*places.rbegin(), 31);
}

// With one block per SM, other thread counts, many sums, copies without room for two blocks, or
// another fusion, ptxas chooses the registers.
TEST(LinearMma, TwoBlocksOf512ThreadsStandSideBySideWhereBothFit) {
  Gemm op;
  op.shape = {4, 16384, 4096};
  op.weights = find_format("quip-4", "test");
  const LinearMma both{.threads = 512,
                       .outputs_per_warp = 16,
                       .chunk_columns = 1024,
                       .splits = 4,
                       .rows_per_block = 4,
                       .fragment_rows = 4,
                       .code_words = 4,
                       .codebook = all_replicated(256, 8)};
  const GpuSpec gpu = find_gpu("h200");
  const auto resident = [&](auto change) {
    LinearMma plan = both;
    change(plan);
    EXPECT_TRUE(check(plan, op, gpu).ok);
    return call_shape(plan, op).launches[0].resident;
  };
  EXPECT_EQ(resident([](LinearMma&) {}), 2);
  EXPECT_EQ(resident([](LinearMma& plan) { plan.splits = 2; }), 0);  // 128 blocks
  EXPECT_EQ(resident([](LinearMma& plan) { plan.threads = 256; }), 0);
  EXPECT_EQ(resident([](LinearMma& plan) { plan.rows_per_block = 16; }), 0);
  EXPECT_EQ(resident([](LinearMma& plan) { plan.codebook.copies = 16; }), 0);
  const auto shuffled = [](LinearMma& plan) { plan.fusion = LinearFusion::registers; };
  EXPECT_EQ(resident(shuffled), 0);
}

}  // namespace
}  // namespace vqgen
