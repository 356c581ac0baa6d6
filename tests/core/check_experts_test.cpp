// Grouped GEMMs (MoE): what a config may say of experts, and what a call of them takes.
#include "core/ceil_div.h"
#include "heuristics/kernels/slice.h"
#include "tests/core/check_support.h"

namespace vqgen {
namespace {

Json experts_json(int rows, int experts, int total_rows) {
  return edited(gemv_json(), {{"/shape/m", std::to_string(rows)},
                              {"/shape/experts", std::to_string(experts)},
                              {"/shape/total_rows", std::to_string(total_rows)}});
}
Linear product(int rows, int experts, int total_rows) {
  return *as_linear(read_config(experts_json(rows, experts, total_rows), "c.json").problem);
}

TEST(CheckExperts, WhatAConfigSays) {
  const auto refused = [](const std::vector<Edit>& edits, const std::vector<std::string>& words) {
    const Json json = edited(experts_json(4, 8, 16), edits);
    expect_words(message_of([&] { read_config(json, "c.json"); }), words);
  };
  refused({{"/shape/experts", "513"}}, {"c.json: /shape/experts", "0 to 512"});
  refused({{"/shape/experts", "-1"}}, {"/shape/experts", "0 to 512"});
  refused({{"/shape/experts", ""}}, {"/shape/total_rows", "goes with experts only"});
  refused({{"/op", R"("gemm")"}, {"/shape/m", "65"}, {"/shape/total_rows", "65"}},
          {"/shape/m", "up to 64 rows, not 65"});
  refused({{"/shape/total_rows", "3"}}, {"/shape/total_rows", "3 is less than the 4", "lower"});
  refused({{"/shape/total_rows", "33"}}, {"33 is more than 4 rows for each of 8", "32 at most"});
  refused({{"/shape/out_features", "16777216"}, {"/shape/in_features", "1048576"}},
          {"all experts' matrices together", "beyond any device"});
}

// A missing field is not written, so digests and tuned rows of one matrix do not change.
TEST(CheckExperts, OneMatrixIsWrittenAsBefore) {
  const Json one = to_json(read_config(gemv_json(), "c.json").problem)["shape"];
  EXPECT_FALSE(one.contains("experts"));
  EXPECT_FALSE(one.contains("total_rows"));
  const Json json = experts_json(4, 8, 16);
  EXPECT_EQ(to_json(read_config(json, "c.json").problem)["shape"], json["shape"]);
}

// A call has a slot for every block of rows that its experts may have.
TEST(CheckExperts, HaveSlotsForAllBlocksOfRows) {
  const LinearSimt plan{.threads = 64, .chunk_columns = 128, .splits = 2};
  const vq::CallShape one = call_shape(plan, product(4, 0, 0));
  EXPECT_EQ(one.launches[0].z, 2);
  for (const auto& [experts, total, slots] :
       {std::tuple{1, 4, 1}, {8, 16, 9}, {64, 16, 16}, {64, 0, 88}}) {
    const Linear op = product(4, experts, total);
    const vq::CallShape shape = call_shape(plan, op);
    EXPECT_EQ(shape.launches[0].x, one.launches[0].x);
    EXPECT_EQ(shape.launches[0].z, 2 * slots);
    EXPECT_EQ(shape.counters, one.counters * slots);
    const std::int64_t rows = op.shape.call_rows();
    EXPECT_EQ(rows, total > 0 ? total : 4 * experts);
    EXPECT_EQ(shape.workspace_bytes,
              vq::kCounterBytes + 2 * rows * op.shape.out_features * std::int64_t{4});
    EXPECT_EQ(shape.launches[1].x, ceil_div(rows * op.shape.out_features, 256));
  }
}

TEST(CheckExperts, FirstKernelsLayOutTheRowsOfEachSlot) {
  Linear op = product(4, 8, 16);
  op.shape.rows = op.shape.total_rows = 16;
  const LinearWgmmaLargeM plan{.rows_per_block = 8, .code_words = 1};
  Linear one = op;
  one.shape.experts = one.shape.total_rows = 0;
  const vq::CallShape shape = call_shape(plan, op);
  EXPECT_EQ(shape.launches[0].z, 9);
  EXPECT_EQ(shape.launches[1].y, 1);
  EXPECT_EQ(shape.handed_bytes, 9 * call_shape(plan, one).handed_bytes / 2);
}

TEST(CheckExperts, CountersAndGridsHaveRoom) {
  LinearSimt plan{.threads = 32,
                  .outputs_per_warp = 1,
                  .chunk_columns = 128,
                  .splits = 2,
                  .combine = Combine::last_block};
  const auto judge = [&](const Linear& op) { return check(plan, Gemv{op}, find_gpu("h200")); };
  Linear op = product(1, 128, 128);
  op.shape.out_features = 128;
  expect_ok(judge(op));
  op.shape.out_features = 129;
  expect_refused(judge(op), {"16512 counters", "use kernel"});
  plan.combine = Combine::kernel;
  plan.chunk_columns = 8;
  plan.splits = 511;
  op.shape.in_features = 4096;
  expect_ok(judge(op));
  plan.splits = 512;
  expect_refused(judge(op), {"128 blocks of rows", "512 splits", "65535", "fewer splits"});
}

// All experts that can have rows fill the grid: no splits if they are enough.
TEST(CheckExperts, ShareTheGpu) {
  const GpuSpec gpu = find_gpu("h200");
  for (const char* format : {"aqlm-2x8", "aqlm-2x8i8", "quip-4", "gptvq-2", "aqlm-1x16"}) {
    const Json json =
        edited(experts_json(4, 64, 32), {{"/shape/out_features", "14336"},
                                         {"/shape/in_features", "4096"},
                                         {"/weights", '"' + std::string(format) + '"'}});
    const Problem problem = read_config(json, "c.json").problem;
    for (const Chooser chooser : {Chooser::model, Chooser::rules}) {
      const Plan plan = choose(problem, gpu, {.chooser = chooser});
      const vq::CallShape shape = call_shape(plan, problem);
      EXPECT_GE(shape.blocks(), gpu.sms) << format;
    }
  }
}

}  // namespace
}  // namespace vqgen
