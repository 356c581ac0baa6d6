// The plans of weight_dequantize: accepted, distinct, enough blocks to fill the GPU, and codebooks
// fetched only by blocks that write more than they fetch. And the rows of x from which a GEMM of
// dense weights is taken.
#include <set>

#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/explain.h"
#include "heuristics/kernels/slice.h"
#include "heuristics/many_rows.h"
#include "heuristics/space.h"
#include "heuristics/tuned/ladder.h"
#include "tests/core/support.h"
#include "tests/heuristics/tuned_rows.h"

namespace vqgen {
namespace {

WeightDequantize weights(const std::string& format, std::int64_t rows, std::int64_t in) {
  return {DType::f16, {rows, rows, in}, find_format(format, "test")};
}

std::vector<WeightDequantize> matrices() {
  WeightDequantize tiles = weights("aqlm-2x8", 4096, 4096);
  tiles.weights.scope = Scope::tile;
  tiles.weights.tile_rows = 48;
  tiles.weights.tile_columns = 24;
  return {weights("aqlm-2x8i8", 4096, 4096),
          weights("aqlm-2x8", 1024, 8192),
          weights("aqlm-1x16", 4096, 11008),
          weights("quip-4", 300, 4096),
          weights("gptvq-2", 4096, 4096),
          weights("iq2-xxs", 4096, 4096),
          weights("q2-k", 4096, 4096),
          weights("aqlm-2x8i8", 17, 1 << 20),
          tiles};
}

TEST(WeightRowsPlans, AreAcceptedOnEveryGpu) {
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = find_gpu(name);
    for (const WeightDequantize& op : matrices()) {
      SCOPED_TRACE(name + " " + to_json(Problem(op)).dump());
      const WeightsSimt plan = choose_plan(WeightsSimt{}, op, gpu);
      EXPECT_TRUE(check(plan, op, gpu).ok) << check(plan, op, gpu).reason;
      for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
        EXPECT_EQ(choose(op, gpu, {.chooser = chooser, .last_block = true}), Plan(plan));
      }
      EXPECT_FALSE(report(plan, op, gpu, {}).empty());
    }
  }
}

TEST(WeightRowsPlans, FillTheGpuAndFetchLessThanTheyWrite) {
  const GpuSpec gpu = find_gpu("h200");
  for (const WeightDequantize& op : matrices()) {
    SCOPED_TRACE(to_json(Problem(op)).dump());
    const WeightsSimt plan = choose_plan(WeightsSimt{}, op, gpu);
    if (op.elements() >= 4096 * 4096) {
      EXPECT_GE(call_shape(plan, op).blocks(), gpu.sms);
    }
    if (plan.codebook == all_global()) continue;
    const OperandUse use = plan_use(plan, op).operands.front();
    EXPECT_LE(static_cast<double>(use.stored_row_bytes()) * op.weights.entries(),
              2.0 * plan.weight_rows * plan.chunk_columns);
  }
}

TEST(WeightRowsPlans, OfTheSpaceAreDistinct) {
  const GpuSpec gpu = find_gpu("h200");
  for (const WeightDequantize& op : matrices()) {
    SCOPED_TRACE(to_json(Problem(op)).dump());
    const Space all = space(op, gpu, {.most = 0});
    EXPECT_EQ(all.plans.size(), all.feasible);
    std::set<std::string> texts;
    for (const Plan& plan : all.plans) {
      EXPECT_TRUE(check(plan, op, gpu).ok);
      EXPECT_TRUE(texts.insert(to_json(plan).dump()).second);
    }
    EXPECT_TRUE(texts.contains(to_json(Plan(choose_plan(WeightsSimt{}, op, gpu))).dump()));
  }
}

TEST(WeightRowsPlans, RowsOfTunedTablesServe) {
  const GpuSpec gpu = find_gpu("h200");
  const WeightDequantize op = weights("aqlm-2x8i8", 4096, 4096);
  WeightDequantize fewer = op, other = op;
  fewer.shape.rows /= 2;
  other.weights = find_format("aqlm-2x8", "test");
  const WeightsSimt plan{.threads = 256, .weight_rows = 4};
  const auto rung_for = [&](const WeightDequantize& of_row) {
    TunedTables tables(Damage::fail);
    tables.add("t.jsonl", table_text({{test::tuned_row(of_row, plan)}}));
    const LadderAnswer answer = look_up(tables, test::config_of(op), gpu, {});
    return answer.taken ? std::string(enum_name(answer.taken->rung)) : "none";
  };
  EXPECT_EQ(rung_for(op), "exact");
  EXPECT_EQ(rung_for(fewer), "none");
  EXPECT_EQ(rung_for(other), "none");
}

Gemm gemm(const std::string& format, std::int64_t out, std::int64_t in) {
  return {{DType::f16, {256, out, in}, find_format(format, "test")}};
}
std::optional<ManyRows> many(const Gemm& op, const GpuSpec& gpu) {
  return many_rows(choose(op, gpu), op, gpu);
}

TEST(ManyRows, AreDenseWhereLaunchesTakeLonger) {
  const GpuSpec gpu = find_gpu("h200");
  const auto small = many(gemm("aqlm-2x8i8", 4096, 4096), gpu);
  const auto large = many(gemm("aqlm-2x8i8", 28672, 8192), gpu);
  ASSERT_TRUE(small && large);
  EXPECT_GT(small->from, 256);
  EXPECT_LT(small->from, 2048);
  EXPECT_LT(large->from, 4096);
  for (const auto& [in, each] : {std::pair{4096, *small}, std::pair{8192, *large}}) {
    EXPECT_EQ(each.part % 256, 0);
    EXPECT_LE(2 * each.part * in, kMostDenseBytes);
  }
  EXPECT_EQ(dense_part({.out_features = 100, .in_features = 64}), 100);
  EXPECT_EQ(dense_part({.out_features = 100, .in_features = 1 << 24}), 1);
}

TEST(ManyRows, AreNotWhereNothingIsKnown) {
  const GpuSpec gpu = find_gpu("h200");
  Gemm experts = gemm("aqlm-2x8i8", 4096, 4096);
  experts.shape.rows = 64;
  experts.shape.experts = 4;
  EXPECT_FALSE(many(experts, gpu));
  EXPECT_FALSE(many(gemm("aqlm-2x8i8", 4096, 4096), find_gpu("a100")));
  const Gemm op = gemm("aqlm-2x8i8", 4096, 4096);
  const Plan plan = choose(op, gpu);
  CostProfile profile = cost_profile();
  EXPECT_TRUE(many_rows(plan, op, gpu, profile));
  profile.dense_gemm.operations = 1;  // a GEMM that no launch is as slow as
  EXPECT_FALSE(many_rows(plan, op, gpu, profile));
  profile.dense_gemm = {};
  EXPECT_FALSE(many_rows(plan, op, gpu, profile));
}

}  // namespace
}  // namespace vqgen
