// Clusters of blocks in the space of plans, in their cost and in what the choosers take.
#include <gtest/gtest.h>

#include "core/gpu/gpu_arch.h"
#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/cost.h"
#include "heuristics/space.h"

namespace vqgen {
namespace {

Gemm product_of_bytes(int rows = 64) {
  Gemm op;
  op.shape = {.rows = rows, .out_features = 4096, .in_features = 14336};
  op.weights = find_format("aqlm-2x8i8", "test");
  return op;
}

// The model counts one cluster fewer than the driver reports.
TEST(ClusterSms, AreThoseThatTookOneTurn) {
  const GpuSpec gpu = find_gpu("h100");
  const std::vector<int> expected{132, 132, 114, 116, 105, 96, 98, 112};
  for (int blocks = 1; blocks <= 8; ++blocks) {
    EXPECT_EQ(cluster_sms(gpu, blocks), expected[static_cast<std::size_t>(blocks - 1)]) << blocks;
  }
  GpuSpec small = gpu;
  small.sms = 4;
  EXPECT_EQ(cluster_sms(small, 3), 3);
  EXPECT_EQ(cluster_sms(small, 8), 8);  // one by one
}

TEST(ClusterSpace, HasThemBesideKernelsOfTwoToEightSplits) {
  const Problem problem = product_of_bytes();
  std::size_t clusters = 0;
  for (const char* name : {"h100", "a100", "b200"}) {
    const GpuSpec gpu = find_gpu(name);
    for (const Plan& plan : space(problem, gpu, {.most = 0, .last_block = false}).plans) {
      const auto cluster = merged_as_cluster(plan, problem, gpu);
      const int splits = call_shape(plan, problem).splits;
      const bool may = std::holds_alternative<LinearInt8Wgmma>(plan) ||
                       std::holds_alternative<LinearWgmmaLargeM>(plan) ||
                       std::holds_alternative<LinearWgmma>(plan);
      EXPECT_TRUE(!cluster || (may && splits >= 2 && splits <= 8));
      if (!cluster) continue;
      EXPECT_EQ(std::string(name), "h100");
      EXPECT_TRUE(check(*cluster, problem, gpu).ok);
      clusters += *cluster == plan ? 1u : 0u;
    }
  }
  EXPECT_GT(clusters, 20u);
}

// A cluster's own cost replaces that of partials and of a second kernel; blocks are a larger share
// of a wave if clusters leave SMs unused.
TEST(ClusterCost, IsAnExchangeInPlaceOfPartials) {
  Gemm op = product_of_bytes();
  op.shape.out_features = 14 * 256;  // clusters of 8 in one wave
  GpuSpec gpu = find_gpu("h100");
  gpu.sm_clock_mhz = 1000;
  LinearInt8Wgmma plan{.splits = 8, .rows_per_block = 64};
  plan.codebook = all_replicated(256, 16);
  CostModel model(op, gpu, {});
  CostParts by_kernel = model.ideal(plan);
  plan.combine = Combine::cluster;
  const Verdict verdict = check(plan, op, gpu);
  ASSERT_TRUE(verdict.ok) << verdict.reason;
  const CostParts as_cluster = model.ideal(plan);
  EXPECT_EQ(by_kernel[CostPart::cluster], 0);
  // The exchange costs twice as much beside the pre-pass that makes the next call's x.
  EXPECT_DOUBLE_EQ(as_cluster[CostPart::cluster], 0.7 + 2 * 256 * 64 * 4 / 12.0 / 1000);
  LinearInt8Wgmma by_blocks = plan;
  by_blocks.prepack_x = 0;
  EXPECT_DOUBLE_EQ(model.ideal(by_blocks)[CostPart::cluster], 0.7 + 256 * 64 * 4 / 12.0 / 1000);
  LinearWgmmaLargeM rows{.chunk_columns = 512, .splits = 8, .combine = Combine::cluster};
  rows.rows_per_block = 64;
  rows.codebook = plan.codebook;
  EXPECT_DOUBLE_EQ(model.ideal(rows)[CostPart::cluster], 0.7 + 256 * 64 * 4 / 10.0 / 1000);
  rows.byte_sums = 1;
  EXPECT_DOUBLE_EQ(model.ideal(rows)[CostPart::cluster], 0.7 + 256 * 64 * 4 / 19.0 / 1000);
  EXPECT_GT(by_kernel[CostPart::combine], 1);
  EXPECT_EQ(as_cluster[CostPart::combine], 0);
  EXPECT_LT(as_cluster[CostPart::l2], by_kernel[CostPart::l2]);
  // 112 blocks: clusters of 8 fill all SMs that they can use, a kernel leaves 20 SMs free.
  constexpr double kShareOfOthers = 0.4;
  const double share = 1 - kShareOfOthers * 20 / 132;
  for (const CostPart part : {CostPart::combine, CostPart::cluster, CostPart::l2}) {
    by_kernel[part] = as_cluster[part];
  }
  for (const CostPart part :
       {CostPart::shared, CostPart::lookups, CostPart::arithmetic, CostPart::tensor}) {
    EXPECT_DOUBLE_EQ(by_kernel[part], share * as_cluster[part]);
    by_kernel[part] = as_cluster[part];
  }
  EXPECT_EQ(by_kernel.of, as_cluster.of);

  // 44 blocks of outputs times 3 splits are 132 blocks; clusters leave 18 of them to a second wave.
  Gemm three = op;
  three.shape.out_features = 44 * 256;
  plan.splits = 3;
  CostModel model_of_three(three, gpu, {});
  const double tensor = model_of_three.ideal(plan)[CostPart::tensor];
  plan.combine = Combine::kernel;
  EXPECT_DOUBLE_EQ(tensor, (2 - kShareOfOthers * (2 - 132.0 / 114)) *
                               model_of_three.ideal(plan)[CostPart::tensor]);
}

// If each block converts x to bytes, no launch is needed, but every block of outputs converts x
// again.
TEST(BytegroupsCost, OfXByEachBlockGrowsWithRowsAndColumns) {
  const GpuSpec gpu = find_gpu("h100");
  Gemm op = product_of_bytes();
  op.shape.out_features = op.shape.in_features = 4096;
  const auto prologue = [&](int rows, int splits, int prepack_x) {
    op.shape.rows = rows;
    LinearInt8Wgmma plan{.splits = splits};
    plan.prepack_x = prepack_x;
    plan.rows_per_block = rows;
    plan.codebook = all_replicated(256, 16);
    const Verdict verdict = check(plan, op, gpu);
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    return CostModel(op, gpu, {}).ideal(plan)[CostPart::prologue];
  };
  EXPECT_LT(prologue(16, 8, 0), prologue(16, 8, 1));
  EXPECT_GT(prologue(64, 4, 0), prologue(64, 4, 1));
  EXPECT_GT(prologue(32, 8, 0), prologue(16, 8, 0));
  EXPECT_GT(prologue(32, 4, 0), prologue(32, 8, 0));
}

// If the producer warps convert x too slowly, their time is the block's.
TEST(BytesCost, OfMakingWarpsIsTheirTimeWhereTheyAreSlower) {
  const GpuSpec gpu = find_gpu("h100");
  Gemm op = product_of_bytes();
  op.shape = {.rows = 8, .out_features = 3584, .in_features = 18944};
  LinearInt8Mma plan{.threads = 320, .outputs_per_warp = 16, .chunk_columns = 1024};
  plan.warps_along_columns = 4;
  plan.codebook = all_replicated(256, 16);
  const auto shared = [&](int producer_warps) {
    plan.producer_warps = producer_warps;
    plan.threads = 256 + 32 * producer_warps;
    const Verdict verdict = check(plan, op, gpu);
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    return CostModel(op, gpu, {}).ideal(plan)[CostPart::shared];
  };
  EXPECT_GT(shared(2), 3 * shared(0));  // far slower than other plans
  EXPECT_NEAR(shared(2), 2 * shared(4), 0.1 * shared(2));
}

TEST(ClusterChoice, IsMadeByRulesAndByTheModel) {
  const GpuSpec gpu = find_gpu("h100");
  Gemm op = product_of_bytes();
  op.shape.out_features = op.shape.in_features = 3584;
  Config config;
  config.problem = op;
  config.plan = {{"dataflow", "int8_wgmma"}, {"prepack_x", 1}};
  const auto chosen = [&](Chooser chooser) {
    return std::get<LinearInt8Wgmma>(propose(config, gpu, {.chooser = chooser}));
  };
  for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
    EXPECT_EQ(chosen(chooser).combine, Combine::cluster);
    // Splits and the way to merge them are taken from the config if it fixes them.
    config.plan["combine"] = "kernel";
    EXPECT_EQ(chosen(chooser).combine, Combine::kernel);
    config.plan.erase("combine");
    for (const int splits : {1, 14}) {
      config.plan["splits"] = splits;
      EXPECT_EQ(chosen(chooser).combine, Combine::kernel);
      EXPECT_EQ(chosen(chooser).splits, splits);
    }
    config.plan.erase("splits");
  }
}

}  // namespace
}  // namespace vqgen
