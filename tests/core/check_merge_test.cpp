// attention_merge in core: an op without operands read and written, names of its plans, and every
// rule of validate() and check(), with a case that breaks it and a near miss that passes.
#include "core/access/access_counts.h"
#include "core/plan/plan_name.h"
#include "tests/core/check_support.h"

namespace vqgen {
namespace {

AttentionMerge sound_merge() {
  return std::get<AttentionMerge>(read_config(merge_json(), "c.json").problem);
}

Verdict judge_merge_plan(const MergeSimt& plan, const AttentionMerge& op = sound_merge()) {
  return check(plan, op, find_gpu("h200"));
}

TEST(CheckMerge, AConfigReadsWhatItWrites) {
  const Json canonical = to_json(Problem(sound_merge()));
  EXPECT_EQ(canonical, edited(merge_json(), {{"/dtype", R"("f16")"}}));
  EXPECT_EQ(read_config(canonical, "again.json").problem, Problem(sound_merge()));
  EXPECT_NE(Problem(sound_merge()),
            read_config(edited(merge_json(), {{"/shape/parts", "2"}}), "c").problem);
}

TEST(CheckMerge, WhatNoMergeIsIsRefused) {
  const auto refused = [](const std::vector<Edit>& edits) {
    return message_of([&] { read_config(edited(merge_json(), edits), "c.json"); });
  };
  expect_words(refused({{"/shape/parts", "1"}}), {"/shape/parts", "2 to 8"});
  expect_words(refused({{"/shape/parts", "9"}}), {"/shape/parts", "2 to 8"});
  expect_words(refused({{"/shape/parts", ""}}), {"'parts' is missing"});
  expect_words(refused({{"/shape/rows", "0"}}), {"/shape/rows"});
  expect_words(refused({{"/keys", R"("cq-2c8b")"}}), {"keys"});
  expect_words(refused({{"/shape/rows", "16777216"}, {"/shape/heads", "65535"}}),
               {"/shape", "a result", "beyond any device"});
  for (const char* parts : {"2", "8"}) {
    expect_ok(check(read_config(edited(merge_json(), {{"/shape/parts", parts}}), "c").problem));
  }
}

TEST(CheckMerge, HeadDim) {
  AttentionMerge op = sound_merge();
  for (const int head_dim : {8, 72, 80, 1024}) {
    op.shape.head_dim = head_dim;
    expect_ok(check(op));
    expect_ok(judge_merge_plan({}, op));
  }
  for (const int head_dim : {1, 12, 1020}) {
    op.shape.head_dim = head_dim;
    expect_refused(check(op), {"head_dim " + std::to_string(head_dim), "not a multiple of 8"});
  }
}

TEST(CheckMerge, Ranges) { check_plan_ranges(sound_merge(), find_gpu("h200")); }

TEST(CheckMerge, WholeWarpsAndALaneForEachLoadOfAHead) {
  expect_refused(judge_merge_plan({.threads = 48}), {"threads 48", "multiple of 32"});
  AttentionMerge op = sound_merge();
  op.shape.head_dim = 256;
  expect_ok(judge_merge_plan({.threads = 32}, op));
  op.shape.head_dim = 264;
  expect_refused(judge_merge_plan({.threads = 32}, op),
                 {"threads 32", "33 lanes", "raise threads"});
}

TEST(CheckMerge, PlansOfOtherOps) {
  const GpuSpec gpu = find_gpu("h200");
  expect_refused(check(AttentionSimt{}, sound_merge(), gpu), {"another op", "attention_merge"});
  expect_refused(check(MergeSimt{}, read_config(dequantize_json(), "c").problem, gpu),
                 {"another op", "kv_dequantize"});
}

TEST(CheckMerge, PlansHaveNames) {
  const Plan plan = MergeSimt{.threads = 128};
  EXPECT_EQ(plan_name(plan), "merge_simt/threads=128");
  const Json json = plan_name(plan);
  EXPECT_EQ(read_plan_name(JsonCursor(json, "t.jsonl", "/plan")), plan);
}

TEST(CheckMerge, AccessCountsIsRefused) {
  expect_words(message_of([] { match_access_counts({}, sound_merge(), "p.json"); }),
               {"p.json", "attention_merge", "remove access_counts"});
}

}  // namespace
}  // namespace vqgen
