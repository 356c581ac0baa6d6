// weight_dequantize in core: configs read and written, names of its plans, and every rule of
// validate() and check(), with a case that breaks it and a near miss that passes.
#include "core/plan/plan_name.h"
#include "tests/core/check_support.h"

namespace vqgen {
namespace {

WeightDequantize sound_rows() {
  return std::get<WeightDequantize>(read_config(weight_rows_json(), "c.json").problem);
}

Verdict judge_rows_plan(const WeightsSimt& plan, const WeightDequantize& op = sound_rows()) {
  return check(plan, op, find_gpu("h200"));
}

TEST(CheckWeightRows, AConfigReadsWhatItWrites) {
  const Json canonical = to_json(Problem(sound_rows()));
  EXPECT_EQ(canonical.at("op"), "weight_dequantize");
  EXPECT_EQ(read_config(canonical, "again.json").problem, Problem(sound_rows()));
  EXPECT_NE(Problem(sound_rows()),
            read_config(edited(weight_rows_json(), {{"/shape/rows", "3"}}), "c").problem);
}

TEST(CheckWeightRows, WhatNoMatrixIsIsRefused) {
  const auto refused = [](const std::vector<Edit>& edits) {
    return message_of([&] { read_config(edited(weight_rows_json(), edits), "c.json"); });
  };
  expect_words(refused({{"/shape/m", "8"}}), {"/shape", "unknown field 'm'"});
  expect_words(refused({{"/shape/experts", "8"}}), {"/shape", "unknown field 'experts'"});
  expect_words(refused({{"/shape/rows", ""}}), {"'rows' is missing"});
  expect_words(refused({{"/shape/rows", "513"}}), {"/shape/rows", "513", "512 rows", "lower them"});
  EXPECT_NO_THROW(read_config(edited(weight_rows_json(), {{"/shape/rows", "512"}}), "c.json"));
  expect_words(refused({{"/weights/smooth", "true"}}), {"/weights", "transform keys only"});
  expect_words(refused({{"/weights/scope", R"("head")"}}), {"/weights/scope", "have no heads"});
  expect_words(refused({{"/shape/in_features", "1028"}}), {"in_features", "1028"});
  expect_words(refused({{"/shape/out_features", "16777216"}, {"/shape/in_features", "16777216"}}),
               {"/shape", "a matrix", "beyond any device"});
}

TEST(CheckWeightRows, Formats) {
  check_format_rules(sound_rows().weights, "weights", [](const VqFormat& format) {
    WeightDequantize op = sound_rows();
    op.weights = format;
    return op;
  });
}

TEST(CheckWeightRows, Ranges) { check_plan_ranges(sound_rows(), find_gpu("h200")); }

TEST(CheckWeightRows, PlansThatABlockCannotDo) {
  expect_ok(judge_rows_plan({}));
  expect_refused(judge_rows_plan({.threads = 48}), {"threads 48", "multiple of 32"});
  expect_refused(judge_rows_plan({.chunk_columns = 12}), {"chunk_columns 12", "multiple of 8"});
  expect_refused(judge_rows_plan({.weight_rows = 65536, .chunk_columns = 1 << 24}),
                 {"too much for a block"});
  expect_refused(judge_rows_plan({.codebook = {.shared = 257}}), {"weights", "257", "256"});
  WeightDequantize op = sound_rows();
  op.weights.index_bits = 16;
  expect_refused(judge_rows_plan({.codebook = {.shared = 65536}}, op),
                 {"bytes of shared memory per block"});
  op.shape.in_features = 1 << 24;
  expect_refused(judge_rows_plan({.chunk_columns = 8}, op), {"grid's second axis"});
}

TEST(CheckWeightRows, BlocksOfTiles) {
  WeightDequantize op = sound_rows();
  op.weights.scope = Scope::tile;
  op.weights.tile_rows = 24;
  op.weights.tile_columns = 96;
  const WeightsSimt near{.weight_rows = 8, .chunk_columns = 96, .codebook = {.shared = 256}};
  expect_ok(judge_rows_plan(near, op));
  WeightsSimt plan = near;
  plan.chunk_columns = 64;
  expect_refused(judge_rows_plan(plan, op), {"chunk_columns 64", "96 columns of a codebook"});
  plan = near;
  plan.weight_rows = 16;
  expect_refused(judge_rows_plan(plan, op), {"24 rows of a tile", "weight_rows 16"});
  plan.codebook = {};
  expect_ok(judge_rows_plan(plan, op));
}

TEST(CheckWeightRows, PlansOfOtherOps) {
  const GpuSpec gpu = find_gpu("h200");
  expect_refused(check(LinearSimt{}, sound_rows(), gpu), {"another op", "weight_dequantize"});
  expect_refused(check(WeightsSimt{}, read_config(gemv_json(), "c").problem, gpu),
                 {"another op", "gemv"});
}

TEST(CheckWeightRows, PlansHaveNames) {
  const Plan plan = WeightsSimt{.weight_rows = 32};
  EXPECT_EQ(plan_name(plan), "weights_simt/weight_rows=32");
  const Json json = plan_name(plan);
  EXPECT_EQ(read_plan_name(JsonCursor(json, "t.jsonl", "/plan")), plan);
}

}  // namespace
}  // namespace vqgen
