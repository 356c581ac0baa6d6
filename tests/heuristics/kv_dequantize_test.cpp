// The plans of kv_dequantize: accepted, distinct, enough blocks to fill the GPU, and codebooks
// fetched only by blocks that write more than they fetch.
#include <set>

#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/explain.h"
#include "heuristics/kernels/slice.h"
#include "heuristics/placement/plan_use.h"
#include "heuristics/space.h"
#include "heuristics/tuned/ladder.h"
#include "tests/core/support.h"
#include "tests/heuristics/tuned_rows.h"

namespace vqgen {
namespace {

KvDequantize decode(const std::string& format, int batch, std::int64_t tokens, int head_dim = 128) {
  KvDequantize op;
  op.shape = {.batch = batch, .kv_heads = 8, .head_dim = head_dim, .tokens = tokens};
  op.keys = find_format(format, "test");
  op.values = for_values(op.keys);
  return op;
}

std::vector<KvDequantize> decodes() {
  return {decode("vecinfer-d4b8", 1, 300),     decode("vecinfer-d4b8", 4, 32768),
          decode("vecinfer-d8b12", 1, 8192),   decode("cq-2c8b", 2, 5000, 96),
          decode("million-d2b8", 300, 77, 64), decode("cq-8c10b", 1, 65536, 80)};
}

TEST(KvDequantizePlans, AreAcceptedOnEveryGpu) {
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = find_gpu(name);
    for (const KvDequantize& op : decodes()) {
      SCOPED_TRACE(name + " " + to_json(Problem(op)).dump());
      const DequantizeSimt plan = choose_plan(DequantizeSimt{}, op, gpu);
      EXPECT_TRUE(check(plan, op, gpu).ok) << check(plan, op, gpu).reason;
      for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
        EXPECT_EQ(choose(op, gpu, {.chooser = chooser, .last_block = true}), Plan(plan));
      }
      EXPECT_FALSE(report(plan, op, gpu, {}).empty());
    }
  }
}

TEST(KvDequantizePlans, FillTheGpuAndFetchLessThanTheyWrite) {
  const GpuSpec gpu = find_gpu("h200");
  for (const KvDequantize& op : decodes()) {
    SCOPED_TRACE(to_json(Problem(op)).dump());
    const DequantizeSimt plan = choose_plan(DequantizeSimt{}, op, gpu);
    const PlanUse use = plan_use(plan, op);
    const vq::CallShape least = call_shape(DequantizeSimt{.tokens_per_block = 1}, op);
    EXPECT_GE(use.blocks, std::min<std::int64_t>(gpu.sms, least.blocks() / 16));
    for (const OperandUse& each : use.operands) {
      const double fetched =
          static_cast<double>(each.stored_row_bytes()) *
          std::max(vq::shared_range(each.format).end, vq::replicated_range(each.format).end);
      EXPECT_LE(fetched, 2.0 * plan.tokens_per_block * op.shape.head_dim);
    }
  }
  // Small codebooks are wholly in shared memory, with copies for the lanes if a block writes much.
  const DequantizeSimt many = choose_plan(DequantizeSimt{}, decode("vecinfer-d4b8", 4, 32768), gpu);
  EXPECT_EQ(many.key_codebook, all_replicated(256, 16));
  EXPECT_EQ(many.value_codebook, all_replicated(256, 16));
  const DequantizeSimt few = choose_plan(DequantizeSimt{}, decode("vecinfer-d4b8", 1, 300), gpu);
  EXPECT_EQ(few.key_codebook, all_shared(256));
  EXPECT_EQ(few.value_codebook, all_shared(256));
}

// Three blocks are resident per SM: the last wave is nearly full, and so is each block's share of
// it.
TEST(KvDequantizePlans, FillWholeWaves) {
  const GpuSpec gpu = find_gpu("h200");
  const double resident = 3.0 * gpu.sms;
  for (const std::int64_t tokens : {1024, 2500, 8192, 32768, 131072}) {
    for (const int batch : {1, 3, 16, 64}) {
      const KvDequantize op = decode("vecinfer-d4b8", batch, tokens);
      const DequantizeSimt plan = choose_plan(DequantizeSimt{}, op, gpu);
      const double waves = std::ceil(static_cast<double>(plan_use(plan, op).blocks) / resident);
      const double even = 2.0 * batch * 8 * static_cast<double>(tokens) / resident;
      EXPECT_LE(waves * plan.tokens_per_block, 1.3 * even + 16)
          << batch << " x " << tokens << ": " << plan.tokens_per_block;
    }
  }
}

TEST(KvDequantizePlans, OfTheSpaceAreDistinctAndHaveNothingToMerge) {
  const GpuSpec gpu = find_gpu("h200");
  for (const KvDequantize& op : decodes()) {
    const Space all = space(op, gpu, {.most = 0});
    std::set<std::string> texts;
    for (const Plan& plan : all.plans) {
      EXPECT_TRUE(texts.insert(to_json(plan).dump()).second);
      EXPECT_TRUE(check(plan, op, gpu).ok);
      EXPECT_FALSE(merged_by_last_block(plan, op, gpu).has_value());
    }
    EXPECT_GE(all.plans.size(), 30u);
    EXPECT_TRUE(texts.contains(to_json(Plan(choose_plan(DequantizeSimt{}, op, gpu))).dump()));
    for (const Plan& plan : space(op, gpu, {.placement = SpacePlacement::global}).plans) {
      EXPECT_EQ(std::get<DequantizeSimt>(plan).key_codebook, all_global());
    }
  }
}

// At the ceilings, longer sequences and transforms are not expected to be faster.
TEST(KvDequantizePlans, WorkIsCounted) {
  const GpuSpec gpu = find_gpu("h200");
  const auto total = [&](const KvDequantize& op, const DequantizeSimt& plan) {
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
  const KvDequantize op = decode("vecinfer-d4b8", 1, 8192);
  EXPECT_LT(total(op, {}), total(decode("vecinfer-d4b8", 1, 65536), {}));
  KvDequantize plain = op;
  plain.keys.hadamard = false;
  EXPECT_LT(total(plain, {}), total(op, {}));
  // Memory bounds it by the bytes that it writes.
  CostModel model(op, gpu, {});
  EXPECT_GE(model.ideal(DequantizeSimt{})[CostPart::memory],
            8192.0 * 8 * 512 * 1e-3 / gpu.memory_gbps);
}

// A row of this problem serves; a row of another size or format does not.
TEST(KvDequantizePlans, RowsOfTunedTablesServe) {
  const GpuSpec gpu = find_gpu("h200");
  const KvDequantize op = decode("vecinfer-d4b8", 8, 4096);
  const DequantizeSimt plan{.threads = 128, .tokens_per_block = 32};
  const auto rung_for = [&](const KvDequantize& of_row) {
    TunedTables tables(Damage::fail);
    tables.add("t.jsonl", table_text({{test::tuned_row(of_row, plan)}}));
    const LadderAnswer answer = look_up(tables, test::config_of(op), gpu, {});
    return answer.taken ? std::string(enum_name(answer.taken->rung)) : "none";
  };
  EXPECT_EQ(rung_for(op), "exact");
  EXPECT_EQ(rung_for(decode("vecinfer-d4b8", 8, 8192)), "none");
  EXPECT_EQ(rung_for(decode("vecinfer-d8b12", 8, 4096)), "none");
}

}  // namespace
}  // namespace vqgen
