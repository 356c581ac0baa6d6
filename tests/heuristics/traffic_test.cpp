// The expected figures against naive counts over blocks, chunks and sub-vectors; the report for all
// shipped configs.
#include "heuristics/traffic.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/explain.h"
#include "heuristics/kernels/slice.h"
#include "tests/core/support.h"
#include "tests/heuristics/access_counts_random.h"
#include "tests/thirds.h"

namespace vqgen {
namespace {

struct Counts {
  double lookups = 0;
  double fills = 0;
};

// Block after block, chunk after chunk, as templates/vq/ops/linear_work.cuh walks them.
Counts by_walking(const Linear& op, const LinearSimt& plan) {
  const auto config = configured(plan, op);
  const int block_outputs = vq::outputs_per_block(config);
  const std::int64_t chunks = vq::chunks(config);
  const std::int64_t a_split = (chunks + plan.splits - 1) / plan.splits * plan.chunk_columns;
  Counts counts;
  for (int row = 0; row < op.shape.rows; row += plan.rows_per_block) {
    for (std::int64_t output = 0; output < op.shape.out_features; output += block_outputs) {
      const std::int64_t outputs =
          std::min<std::int64_t>(block_outputs, op.shape.out_features - output);
      for (int split = 0; split < plan.splits; ++split) {
        std::int64_t bound = -1;
        const std::int64_t end = std::min((split + 1) * a_split, op.shape.in_features);
        for (std::int64_t column = split * a_split; column < end; column += plan.chunk_columns) {
          const std::int64_t unit = column / config.unit_columns;
          if (unit != bound) counts.fills += 1;
          bound = unit;
          const std::int64_t columns = std::min<std::int64_t>(plan.chunk_columns, end - column);
          counts.lookups += static_cast<double>(outputs * columns / op.weights.vector_size *
                                                op.weights.num_codebooks);
        }
      }
    }
  }
  return counts;
}

TEST(Traffic, OfProductsIsWhatBlocksDo) {
  for (const std::int64_t unit : {64, 256, 4096}) {
    for (const int chunk : {64, 128, 256, 1024}) {
      for (const int splits : {1, 2, 4}) {
        for (const int rows : {1, 3, 8}) {
          Gemv op;
          op.shape = {rows, 96, 4096};
          op.weights = {.vector_size = 4, .index_bits = 6, .num_codebooks = 2};
          op.weights.scope = Scope::channel_group;
          op.weights.group_channels = static_cast<int>(unit);
          LinearSimt plan;
          plan.chunk_columns = chunk;
          plan.splits = splits;
          plan.rows_per_block = 4;
          plan.codebook = all_shared(64);
          SCOPED_TRACE(to_json(plan).dump());
          const Counts counts = by_walking(op, plan);
          const PlanUse use = plan_use(plan, op);
          EXPECT_DOUBLE_EQ(use.operands.at(0).lookups, counts.lookups);
          EXPECT_DOUBLE_EQ(use.operands.at(0).fills, counts.fills);
        }
      }
    }
  }
}

TEST(Traffic, OfACacheByHand) {
  AttentionDecode op;
  op.shape = {.batch = 3, .query_heads = 24, .kv_heads = 2, .head_dim = 64, .tokens = 1000};
  op.keys = {.vector_size = 4, .index_bits = 8, .num_codebooks = 2, .scope = Scope::head};
  op.values = {.vector_size = 8, .index_bits = 12, .scope = Scope::head};
  AttentionSimt plan;
  plan.heads_per_block = 6;  // two blocks per KV head, which read the same codes
  plan.splits = 5;
  plan.key_codebook = all_shared(256);
  plan.value_codebook = {.registers = 4, .shared = 1024};
  const auto traffic = expected_traffic(plan, op, {});
  ASSERT_EQ(traffic.size(), 2u);
  const OperandTraffic& keys = traffic[0];
  EXPECT_DOUBLE_EQ(keys.lookups, 3.0 * 2 * 1000 * 2 * (64 / 4) * 2);
  EXPECT_DOUBLE_EQ(keys.code_bytes, 3.0 * 2 * 1000 * 32);
  EXPECT_DOUBLE_EQ(keys.code_l2_bytes, 2 * keys.code_bytes);
  EXPECT_DOUBLE_EQ(keys.codebook_bytes, 2.0 * 2 * 256 * 8);
  EXPECT_DOUBLE_EQ(keys.fill_l2_bytes, 3.0 * 2 * 2 * 5 * 2 * 256 * 8);
  EXPECT_DOUBLE_EQ(keys.lookup_bytes, keys.lookups * 8);
  EXPECT_EQ(keys.lookup_l2_bytes, 0);
  const OperandTraffic& values = traffic[1];
  EXPECT_DOUBLE_EQ(values.in_registers, 4.0 / 4096);
  EXPECT_DOUBLE_EQ(values.shared, 1020.0 / 4096);
  EXPECT_DOUBLE_EQ(values.global, 0.75);
  EXPECT_DOUBLE_EQ(values.lookup_l2_bytes, 0.75 * values.lookups * 32);
  AttentionDecode bytes = op;  // entries are fetched as stored, and held in half of the space
  bytes.keys.entry_type = EntryType::int8;
  bytes.keys.stage_scales = true;
  EXPECT_DOUBLE_EQ(expected_traffic(plan, bytes, {})[0].fill_l2_bytes, keys.fill_l2_bytes);
  EXPECT_DOUBLE_EQ(expected_traffic(plan, bytes, {})[0].lookup_bytes, keys.lookup_bytes / 2);
}

TEST(Report, OfAllThatShips) {
  std::mt19937_64 random(3);
  std::uint64_t number = 0;
  for (const auto& path : example_configs()) {
    const Problem problem = read_config(path).problem;
    for (const std::string& name : test::a_third(gpu_names(), test::third_after(number++))) {
      SCOPED_TRACE(name + " " + path.filename().string());
      const GpuSpec gpu = find_gpu(name);
      const std::vector<AccessCounts> profiles = random_profiles(problem, random);
      const Placed placed = place(choose(problem, gpu), problem, gpu, profiles);
      for (const OperandTraffic& each : expected_traffic(placed.plan, problem, profiles)) {
        EXPECT_NEAR(each.in_registers + each.replicated + each.shared + each.global, 1, 1e-9);
      }
      std::string text;
      for (const ReportSection& section :
           report(placed.plan, problem, gpu, {profiles, placed.operands, 77})) {
        EXPECT_FALSE(section.lines.empty()) << section.title;
        for (const std::string& line : section.lines) text += line + "\n";
      }
      const bool plain =
          std::holds_alternative<AttentionMerge>(problem) || as_scalar(problem) != nullptr;
      expect_words(text, {"registers: 77 per thread, as compiled", "slack: ",
                          plain              ? "no codebooks"
                          : profiles.empty() ? "codes taken as uniform"
                                             : "by the access counts"});
      std::vector<std::string> broken{" nan", " inf"};
      for (char digit = '0'; digit <= '9'; ++digit) broken.push_back(std::string(" -") + digit);
      for (const std::string& each : broken) {
        EXPECT_EQ(text.find(each), std::string::npos) << text;
      }
    }
  }
}

TEST(Report, DrawsAFragmentWithoutShuffles) {
  for (const int vector_size : {2, 4, 8}) {
    for (const int rows : {2, 8}) {
      Gemm op;
      op.shape = {rows, 256, 4096};
      op.weights = {.vector_size = vector_size, .index_bits = 8};
      const GpuSpec gpu = find_gpu("h200");
      std::string text;
      const LinearMma plan = choose_plan(LinearMma{}, op, gpu);
      for (const ReportSection& section : report(plan, op, gpu)) {
        for (const std::string& line : section.lines) text += line + "\n";
      }
      expect_words(text, {"0 shuffles between lookup and tensor core", "mma.m16n8k16",
                          rows == 2 ? "by halves" : "consumes"});
    }
  }
}

}  // namespace
}  // namespace vqgen
