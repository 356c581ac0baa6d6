// int8_quantize and int8_dequantize in core: ops without operands read and written, names of their
// plans, and every rule of validate() and check(), with a case that breaks it and a near miss that
// passes.
#include "core/access/access_counts.h"
#include "core/plan/plan_name.h"
#include "heuristics/choose.h"
#include "tests/core/check_support.h"

namespace vqgen {
namespace {

Int8Quantize sound_scalar() {
  return std::get<Int8Quantize>(read_config(scalar_json(), "c.json").problem);
}

Verdict judge_scalar_plan(const ScalarForms& plan, const Problem& problem = sound_scalar()) {
  return check(plan, problem, find_gpu("h200"));
}

constexpr ScalarForms kNaive{.form = ScalarForm::naive, .vector = 1, .tokens = 1};

TEST(CheckScalar, AConfigReadsWhatItWrites) {
  EXPECT_EQ(to_json(Problem(sound_scalar())), scalar_json());
  const Json back =
      edited(scalar_json(), {{"/op", R"("int8_dequantize")"}, {"/shape/scales", R"("given")"}});
  const Problem problem = read_config(back, "c.json").problem;
  EXPECT_EQ(to_json(problem), back);
  EXPECT_TRUE(as_scalar(problem)->decodes);
  EXPECT_FALSE(as_scalar(Problem(sound_scalar()))->decodes);
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    const Json json = edited(scalar_json(), {{"/dtype", '"' + std::string(dtype) + '"'}});
    EXPECT_EQ(enum_name(as_scalar(read_config(json, "c").problem)->dtype), dtype);
  }
}

TEST(CheckScalar, WhatNoMatrixIsIsRefused) {
  const auto refused = [](const std::vector<Edit>& edits) {
    return message_of([&] { read_config(edited(scalar_json(), edits), "c.json"); });
  };
  expect_words(refused({{"/dtype", R"("f64")"}}), {"/dtype", "f32, f16, bf16"});
  expect_words(refused({{"/shape/tokens", "0"}}), {"/shape/tokens"});
  expect_words(refused({{"/shape/channels", ""}}), {"'channels' is missing"});
  expect_words(refused({{"/shape/scales", R"("made")"}}), {"/shape/scales", "given, computed"});
  expect_words(refused({{"/op", R"("int8_dequantize")"}}), {"/shape/scales", "use given"});
  expect_words(refused({{"/keys", R"("cq-2c8b")"}}), {"keys"});
  expect_words(refused({{"/shape/tokens", "2147483647"}, {"/shape/channels", "16777216"}}),
               {"/shape", "a matrix", "beyond any device"});
}

TEST(CheckScalar, AFormTakesItsOwnChannelsAndTokens) {
  expect_ok(judge_scalar_plan(kNaive));
  ScalarForms plan = kNaive;
  plan.tokens = 2;
  expect_refused(judge_scalar_plan(plan), {"form naive takes 1 token"});
  plan.form = ScalarForm::coarsened;
  expect_ok(judge_scalar_plan(plan));
  plan.tokens = 1;
  expect_refused(judge_scalar_plan(plan), {"coarsened takes 2 to 16"});
  plan = kNaive;
  plan.form = ScalarForm::tiled;
  expect_ok(judge_scalar_plan(plan));
  plan.vector = 2;
  expect_refused(judge_scalar_plan(plan), {"form tiled and vector 2"});
  plan.form = ScalarForm::vectorized;
  expect_ok(judge_scalar_plan(plan));
  plan.vector = 3;
  expect_refused(judge_scalar_plan(plan), {"vector 3", "power of two"});
  plan.vector = 1;
  expect_refused(judge_scalar_plan(plan), {"form vectorized and vector 1"});
}

TEST(CheckScalar, LanesSplitsAndBlocks) {
  expect_refused(judge_scalar_plan({.lanes = 48}), {"lanes 48", "threads 256"});
  expect_refused(judge_scalar_plan({.threads = 48, .lanes = 48}), {"threads 48", "multiple of 32"});
  Int8Quantize given = sound_scalar();
  given.shape.scales = Scales::given;
  expect_ok(judge_scalar_plan({.splits = 7}));
  expect_refused(judge_scalar_plan({.splits = 7}, given), {"splits 7", "use 1"});
  // There are more elements than a grid has threads, each of which takes one.
  given.shape.tokens = 1 << 30;
  given.shape.channels = 1024;
  expect_refused(judge_scalar_plan(kNaive, given), {"blocks are more than a grid has"});
  expect_ok(judge_scalar_plan({}, given));
  expect_ok(check(choose(given, find_gpu("h200")), given, find_gpu("h200")));
}

TEST(CheckScalar, Ranges) { check_plan_ranges(sound_scalar(), find_gpu("h200")); }

// A row begins at a multiple of the access size, whatever its length.
TEST(CheckScalar, AccessesDivideTheRow) {
  Int8Quantize op = sound_scalar();
  const auto bytes = [&](int channels, int vector) {
    op.shape.channels = channels;
    const vq::CallShape shape = call_shape(Plan(ScalarForms{.vector = vector}), Problem(op));
    return std::pair(shape.element_bytes, shape.code_bytes);
  };
  EXPECT_EQ(bytes(192, 4), std::pair(16, 4));
  EXPECT_EQ(bytes(192, 16), std::pair(16, 16));
  EXPECT_EQ(bytes(190, 16), std::pair(8, 2));
  EXPECT_EQ(bytes(191, 16), std::pair(4, 1));
}

TEST(CheckScalar, PlansHaveNames) {
  const Plan plan = ScalarForms{.form = ScalarForm::coarsened, .vector = 1, .tokens = 8};
  EXPECT_EQ(plan_name(plan), "scalar_forms/form=coarsened,vector=1,tokens=8");
  const Json json = plan_name(plan);
  EXPECT_EQ(read_plan_name(JsonCursor(json, "t.jsonl", "/plan")), plan);
}

TEST(CheckScalar, AccessCountsIsRefused) {
  expect_words(message_of([] { match_access_counts({}, sound_scalar(), "p.json"); }),
               {"p.json", "int8_quantize", "remove access_counts"});
}

}  // namespace
}  // namespace vqgen
