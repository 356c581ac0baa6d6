// The plans of kv_append: accepted, distinct, and with enough blocks to fill the GPU in a decode
// step.
#include <fmt/format.h>

#include <set>
#include <utility>

#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/explain.h"
#include "heuristics/kernels/slice.h"
#include "heuristics/placement/plan_use.h"
#include "heuristics/space.h"
#include "heuristics/tuned/ladder.h"
#include "tests/core/support.h"
#include "tests/heuristics/tuned_rows.h"
#include "tests/klt_runs.h"

namespace vqgen {
namespace {

KvAppend append(const std::string& format, int batch, int new_tokens, int head_dim = 128) {
  KvAppend op;
  op.shape = {.batch = batch,
              .kv_heads = 8,
              .head_dim = head_dim,
              .tokens = 4096,
              .new_tokens = new_tokens};
  op.keys = find_format(format, "test");
  op.values = for_values(op.keys);
  return op;
}

std::vector<KvAppend> appends() {
  return {append("vecinfer-d4b8", 1, 1),      append("vecinfer-d4b8", 64, 1),
          append("vecinfer-d8b12", 1, 3),     append("cq-2c8b", 2, 64, 96),
          append("million-d2b8", 300, 1, 64), append("cq-8c10b", 1, 65536, 80)};
}

TEST(KvAppendPlans, AreAcceptedOnEveryGpu) {
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = find_gpu(name);
    for (const KvAppend& op : appends()) {
      SCOPED_TRACE(name + " " + to_json(Problem(op)).dump());
      const Plan lanes = choose_plan(AppendSimt{}, op, gpu);
      const Plan fragments = choose_plan(AppendMma{}, op, gpu);
      for (const Plan& plan : {lanes, fragments}) {
        const Verdict verdict = check(plan, op, gpu);
        EXPECT_TRUE(verdict.ok) << verdict.reason;
        EXPECT_FALSE(report(plan, op, gpu, {}).empty());
      }
      const int all = op.shape.batch * op.shape.new_tokens;
      const bool many = all >= 128;
      for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
        EXPECT_EQ(choose(op, gpu, {.chooser = chooser, .last_block = true}),
                  many ? fragments : lanes);
      }
    }
  }
}

TEST(KvAppendPlans, AreOfLanesWhereFragmentsCannotRun) {
  KvAppend op = append("vecinfer-d4b8", 1, 4096);
  op.dtype = DType::bf16;
  EXPECT_EQ(kernel_name(choose(op, find_gpu("h200"))), "append_mma");
  EXPECT_EQ(kernel_name(choose(op, find_gpu("t4"))), "append_simt");
  op.dtype = DType::f16;
  EXPECT_EQ(kernel_name(choose(op, find_gpu("t4"))), "append_mma");
  op.values.index_bits = 2;
  EXPECT_EQ(kernel_name(choose(op, find_gpu("h200"))), "append_simt");
}

// Each part has blocks of its own, so that formats in parts need more tokens to fill them.
TEST(KvAppendPlans, OfPartsTakeTensorCoresFromMoreTokens) {
  for (const auto& [batch, tokens] : {std::pair(1, 128), std::pair(128, 1), std::pair(64, 2)}) {
    for (const int times : {1, 2}) {
      KvAppend op = append("vecinfer-d4b8i8", batch, tokens * times);
      EXPECT_EQ(kernel_name(choose(op, find_gpu("h200"))), "append_mma");
      for (const VqFormat& format :
           {test::klt_runs({{64, 8}, {64, 16}}), test::klt_runs({{16, 2}, {48, 4}, {64, 16}}),
            test::klt_of_three_runs(), test::klt_runs({{64, 2}, {64, 4}})}) {
        op.keys = op.values = format;
        EXPECT_EQ(kernel_name(choose(op, find_gpu("h200"))),
                  times == 1 ? "append_simt" : "append_mma")
            << short_name(format) << ", " << batch << " x " << tokens * times;
      }
    }
  }
}

// One token for each of many sequences: a block has several, and every SM a block, or two of simt.
TEST(KvAppendPlans, OfFewTokensOfManySequencesShareBlocks) {
  const GpuSpec gpu = find_gpu("h200");
  const auto preset = [](const char* name) { return find_format(name, "test"); };
  const auto lanes_of = [&](const VqFormat& keys, const VqFormat& values, int batch, int tokens) {
    KvAppend op = append("vecinfer-d4b8", batch, tokens);
    op.keys = keys;
    op.values = for_values(values);
    return choose_plan(AppendSimt{}, op, gpu).sequences_per_block;
  };
  EXPECT_EQ(lanes_of(preset("vecinfer-d4b8i8"), preset("vecinfer-d4b8i8"), 64, 1), 2);
  EXPECT_EQ(lanes_of(test::klt_of_three_runs(), test::klt_of_three_runs(), 64, 1), 8);
  EXPECT_EQ(lanes_of(test::klt_of_three_runs(), test::klt_of_three_runs(), 8, 1), 1);
  EXPECT_EQ(lanes_of(preset("int4-kivi-keys"), preset("int4-kivi-values"), 1024, 1), 1);
  const auto plan_of = [&](int batch, int tokens) {
    return choose_plan(AppendMma{}, append("vecinfer-d4b8", batch, tokens), gpu);
  };
  EXPECT_EQ(
      plan_of(64, 1),
      (AppendMma{.threads = 256, .tokens_per_block = 1, .sequences_per_block = 8, .row_tiles = 2}));
  EXPECT_EQ(plan_of(1024, 1).row_tiles, 4);
  EXPECT_EQ(plan_of(64, 3).tokens_per_block, 3);
  EXPECT_EQ(plan_of(64, 3).sequences_per_block, 2);
  EXPECT_EQ(plan_of(8, 1).sequences_per_block, 1);
  EXPECT_EQ(plan_of(64, 16).sequences_per_block, 1);
}

// VQKV's formats use append_gemm from the same number of tokens on.
TEST(KvAppendPlans, OfWideSubVectorsAreOfProducts) {
  KvAppend op;
  op.shape = {.batch = 1, .kv_heads = 8, .head_dim = 128, .tokens = 32768, .new_tokens = 32768};
  op.keys = find_format("vqkv-llama-3.1-8b-keys", "test");
  op.values = find_format("vqkv-llama-3.1-8b-values", "test");
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = find_gpu(name);
    for (const int tokens : {32768, 1024, 128, 127, 1}) {
      op.shape.new_tokens = tokens;
      const Plan plan = choose(op, gpu);
      SCOPED_TRACE(name + " " + plan_name(plan));
      EXPECT_TRUE(check(plan, op, gpu).ok) << check(plan, op, gpu).reason;
      EXPECT_EQ(kernel_name(plan), tokens < 128 ? "append_simt" : "append_gemm");
      EXPECT_FALSE(report(plan, op, gpu, {}).empty());
      const auto* products = std::get_if<AppendGemm>(&plan);
      if (products == nullptr) continue;
      EXPECT_EQ(products->warpgroups, gpu.warpgroup_products ? 1 : 0);
      CostModel model(op, gpu, {});
      for (const double part : model.ideal(plan).of) EXPECT_GE(part, 0);
    }
  }
  op.values.index_bits = 4;
  op.shape.new_tokens = 1024;
  EXPECT_EQ(kernel_name(choose(op, find_gpu("h200"))), "append_simt");
}

TEST(KvAppendPlans, FillTheGpuWhereTheyCan) {
  const GpuSpec gpu = find_gpu("h200");
  for (const KvAppend& op : appends()) {
    const AppendSimt plan = choose_plan(AppendSimt{}, op, gpu);
    const PlanUse use = plan_use(plan, op);
    AppendSimt most = plan;
    most.splits = 128;
    EXPECT_GE(use.blocks, std::min<std::int64_t>(2 * gpu.sms, plan_use(most, op).blocks))
        << to_json(Problem(op)).dump();
    // No block is idle: shares hold sub-vectors, and whole words of codes.
    const auto config = configured(plan, op);
    for (const vq::FormatConfig& format : {config.keys, config.values}) {
      const int share = vq::share_sub_vectors(config, format);
      EXPECT_LT((vq::shares(config, format) - 1) * share, vq::sub_vectors(config, format));
      EXPECT_TRUE(vq::shares(config, format) == 1 ||
                  share * format.num_codebooks * format.index_bits % 32 == 0);
    }
  }
}

TEST(KvAppendPlans, OfTheSpaceAreDistinctAndHaveNothingToMerge) {
  const GpuSpec gpu = find_gpu("h200");
  for (const KvAppend& op : appends()) {
    const Space all = space(op, gpu, {.most = 0});
    std::set<std::string> texts;
    for (const Plan& plan : all.plans) {
      EXPECT_TRUE(texts.insert(to_json(plan).dump()).second);
      EXPECT_TRUE(check(plan, op, gpu).ok);
      EXPECT_FALSE(merged_by_last_block(plan, op, gpu).has_value());
    }
    EXPECT_GE(all.plans.size(), 60u);
    EXPECT_LT(all.plans.size(), 1500u);
    EXPECT_TRUE(texts.contains(to_json(Plan(choose_plan(AppendSimt{}, op, gpu))).dump()));
    EXPECT_EQ(space(op, gpu, {.most = 40}).plans.size(), 40u);
    EXPECT_TRUE(space(op, gpu, {.placement = SpacePlacement::shared}).plans.empty());
    EXPECT_EQ(space(op, gpu, {.most = 0, .placement = SpacePlacement::global}).plans, all.plans);
  }
}

// The ceilings order the tuner's plans: more blocks for few rows and more warps for large codebooks
// are not expected to be slower.
TEST(KvAppendPlans, WorkIsCounted) {
  const GpuSpec gpu = find_gpu("h200");
  const auto total = [&](const KvAppend& op, const Plan& plan) {
    CostModel model(op, gpu, {});
    EXPECT_FALSE(model(plan).has_value());  // no fitted coefficients
    double sum = 0;
    for (const double part : model.ideal(plan).of) {
      EXPECT_GE(part, 0);
      EXPECT_LT(part, 1e6);
      sum += part;
    }
    return sum;
  };
  const KvAppend large = append("vecinfer-d8b12", 1, 1);
  const AppendSimt lanes;
  EXPECT_LT(total(large, AppendSimt{.splits = 2}), total(large, lanes));
  EXPECT_LT(total(large, AppendSimt{.threads = 512, .warps_along_entries = 4}),
            total(large, lanes));
  EXPECT_LT(total(append("vecinfer-d4b8", 1, 1), lanes), total(large, lanes));
  for (const KvAppend& op : appends()) {
    EXPECT_LE(total(op, choose_plan(AppendSimt{}, op, gpu)), 1.5 * total(op, lanes));
  }
  for (const char* format : {"vecinfer-d4b8", "vecinfer-d8b12"}) {
    const KvAppend prompt = append(format, 1, 8192);
    EXPECT_LT(2 * total(prompt, choose_plan(AppendMma{}, prompt, gpu)),
              total(prompt, choose_plan(AppendSimt{}, prompt, gpu)));
  }
}

// A row of a cache of any room serves; a row of another batch or format does not.
TEST(KvAppendPlans, RowsOfTunedTablesServe) {
  const GpuSpec gpu = find_gpu("h200");
  const KvAppend op = append("vecinfer-d4b8", 8, 1);
  const AppendSimt plan{.threads = 64, .splits = 2};
  const auto rung_for = [&](const KvAppend& of_row) {
    const Json json = to_json(test::tuned_row(of_row, plan));
    const TunedRow row = read_tuned_row(JsonCursor(json, "t.jsonl"));
    EXPECT_EQ(row.plan, Plan(plan));
    TunedTables tables(Damage::fail);
    tables.add("t.jsonl", table_text({{test::tuned_row(of_row, plan)}}));
    const LadderAnswer answer = look_up(tables, test::config_of(op), gpu, {});
    return answer.taken ? std::string(enum_name(answer.taken->rung)) : "none";
  };
  EXPECT_EQ(rung_for(op), "exact");
  EXPECT_EQ(rung_for(append("vecinfer-d4b8", 16, 1)), "none");
  KvAppend longer = op;
  longer.shape.tokens = 100'000;  // which its kernel does not know
  EXPECT_EQ(rung_for(longer), "alike");
  EXPECT_EQ(rung_for(append("vecinfer-d4b8", 8, 2)), "none");
  EXPECT_EQ(rung_for(append("vecinfer-d8b12", 8, 1)), "none");
}

TEST(KvAppendPlans, AConfigsOwnFieldsGoOverThem) {
  const GpuSpec gpu = find_gpu("h200");
  const Config config =
      read_config(edited(append_json(), {{"/plan", R"({"splits": 3, "dataflow": "simt"})"}}), "c");
  const auto plan = std::get<AppendSimt>(propose(config, gpu));
  EXPECT_EQ(plan.splits, 3);
  EXPECT_EQ(plan.threads,
            choose_plan(AppendSimt{}, std::get<KvAppend>(config.problem), gpu).threads);
}

}  // namespace
}  // namespace vqgen
