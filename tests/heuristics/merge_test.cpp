// The plans of attention_merge: accepted, distinct, spread over as many SMs as there are rows for,
// and without codebooks in the report.
#include <set>

#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/explain.h"
#include "heuristics/kernels/slice.h"
#include "heuristics/placement/place.h"
#include "heuristics/placement/plan_use.h"
#include "heuristics/space.h"
#include "heuristics/traffic.h"
#include "heuristics/tuned/ladder.h"
#include "tests/core/support.h"
#include "tests/heuristics/tuned_rows.h"

namespace vqgen {
namespace {

AttentionMerge merge(std::int64_t rows, int heads, int head_dim = 128, int parts = 2) {
  AttentionMerge op;
  op.shape = {.rows = rows, .heads = heads, .head_dim = head_dim, .parts = parts};
  return op;
}

std::vector<AttentionMerge> merges() {
  return {merge(1, 1, 8), merge(1, 32), merge(512, 32), merge(100000, 40, 80, 8),
          merge(7, 5, 1024, 3)};
}

TEST(MergePlans, AreAcceptedOnEveryGpu) {
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = find_gpu(name);
    for (const AttentionMerge& op : merges()) {
      SCOPED_TRACE(name + " " + to_json(Problem(op)).dump());
      const MergeSimt plan = choose_plan(MergeSimt{}, op, gpu);
      EXPECT_TRUE(check(plan, op, gpu).ok) << check(plan, op, gpu).reason;
      for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
        EXPECT_EQ(choose(op, gpu, {.chooser = chooser, .last_block = true}), Plan(plan));
      }
    }
  }
}

TEST(MergePlans, SpreadOverTheGpuAndNoFurther) {
  const GpuSpec gpu = find_gpu("h200");
  EXPECT_EQ(choose_plan(MergeSimt{}, merge(1, 32), gpu), (MergeSimt{.threads = 64, .blocks = 8}));
  EXPECT_EQ(choose_plan(MergeSimt{}, merge(100000, 32), gpu),
            (MergeSimt{.threads = 256, .blocks = 8 * gpu.sms}));
  for (const AttentionMerge& op : merges()) {
    const PlanUse use = plan_use(choose_plan(MergeSimt{}, op, gpu), op);
    EXPECT_GE(use.blocks, 1);
    EXPECT_LE(use.blocks, 8 * gpu.sms);
    EXPECT_TRUE(use.operands.empty());
  }
}

TEST(MergePlans, OfTheSpaceAreDistinctAndHaveNothingToPlace) {
  const GpuSpec gpu = find_gpu("h200");
  for (const AttentionMerge& op : merges()) {
    std::set<std::string> texts;
    for (const Plan& plan : space(op, gpu, {.most = 0}).plans) {
      EXPECT_TRUE(texts.insert(to_json(plan).dump()).second);
      EXPECT_FALSE(merged_by_last_block(plan, op, gpu).has_value());
      const Placed placed = place(plan, op, gpu, {}, {});
      EXPECT_EQ(placed.plan, plan);
      EXPECT_TRUE(placed.operands.empty());
    }
    EXPECT_TRUE(texts.contains(to_json(Plan(choose_plan(MergeSimt{}, op, gpu))).dump()));
  }
}

TEST(MergePlans, SayNothingOfCodebooks) {
  const GpuSpec gpu = find_gpu("h200");
  const AttentionMerge op = merge(1000, 10, 128, 3);
  const Plan plan = choose(op, gpu);
  EXPECT_TRUE(expected_traffic(plan, op, {}).empty());
  std::string all;
  for (const ReportSection& section : report(plan, op, gpu, {})) {
    for (const std::string& line : section.lines) all += line + "\n";
  }
  expect_words(all, {"3 results of up to 1000 query tokens", "no codebooks", "nothing is looked up",
                     "10.40 MB of results read and written"});
  EXPECT_EQ(all.find("codes"), std::string::npos) << all;
}

// At the ceilings, memory bounds it by parts and result.
TEST(MergePlans, WorkIsCounted) {
  const GpuSpec gpu = find_gpu("h200");
  const AttentionMerge op = merge(4096, 32, 128, 4);
  CostModel model(op, gpu, {});
  EXPECT_FALSE(model(MergeSimt{}).has_value());  // no fitted coefficients
  const CostParts parts = model.ideal(MergeSimt{});
  EXPECT_DOUBLE_EQ(parts[CostPart::memory], 5.0 * 4096 * 32 * 260 * 1e-3 / gpu.memory_gbps);
  for (const double part : parts.of) EXPECT_LE(part, parts[CostPart::memory] * 2);
}

TEST(MergePlans, RowsOfTunedTablesServe) {
  const GpuSpec gpu = find_gpu("h200");
  const AttentionMerge op = merge(4096, 32);
  const auto rung_for = [&](const AttentionMerge& of_row) {
    TunedTables tables(Damage::fail);
    tables.add("t.jsonl", table_text({{test::tuned_row(of_row, MergeSimt{.threads = 128})}}));
    const LadderAnswer answer = look_up(tables, test::config_of(op), gpu, {});
    return answer.taken ? std::string(enum_name(answer.taken->rung)) : "none";
  };
  EXPECT_EQ(rung_for(op), "exact");
  EXPECT_EQ(rung_for(merge(8192, 32)), "none");
  EXPECT_EQ(rung_for(merge(4096, 32, 128, 3)), "none");
  EXPECT_EQ(rung_for(merge(4096, 32, 64)), "none");
}

}  // namespace
}  // namespace vqgen
