// kv_dequantize in core: configs read and written, names of its plans, and every rule of validate()
// and check(), with a case that breaks it and a near miss that passes.
#include "core/plan/plan_name.h"
#include "tests/core/check_support.h"

namespace vqgen {
namespace {

KvDequantize sound_dequantize() {
  return std::get<KvDequantize>(read_config(dequantize_json(), "c.json").problem);
}

Verdict judge_dequantize_plan(const DequantizeSimt& plan,
                              const KvDequantize& op = sound_dequantize()) {
  return check(plan, op, find_gpu("h200"));
}

TEST(CheckDecode, AConfigReadsWhatItWrites) {
  const Json canonical = to_json(Problem(sound_dequantize()));
  EXPECT_EQ(canonical.at("op"), "kv_dequantize");
  EXPECT_EQ(read_config(canonical, "again.json").problem, Problem(sound_dequantize()));
  EXPECT_NE(Problem(sound_dequantize()),
            read_config(edited(dequantize_json(), {{"/shape/sinks", "3"}}), "c").problem);
}

TEST(CheckDecode, WhatNoCacheIsIsRefused) {
  const auto refused = [](const std::vector<Edit>& edits) {
    return message_of([&] { read_config(edited(dequantize_json(), edits), "c.json"); });
  };
  expect_words(refused({{"/shape/query_heads", "8"}}), {"/shape", "query_heads"});
  expect_words(refused({{"/shape/new_tokens", "1"}}), {"/shape", "new_tokens"});
  expect_words(refused({{"/shape/tokens", ""}}), {"'tokens' is missing"});
  expect_words(refused({{"/values/smooth", "true"}}), {"/values", "transform keys only"});
  expect_words(
      refused({{"/shape/batch", "65535"}, {"/shape/kv_heads", "65535"}, {"/shape/tokens", "100"}}),
      {"/shape", "a cache", "beyond any device"});
}

TEST(CheckDecode, FormatsOfKeysAndValues) {
  check_format_rules(sound_dequantize().keys, "keys", [](const VqFormat& format) {
    KvDequantize op = sound_dequantize();
    op.keys = format;
    return op;
  });
  check_format_rules(sound_dequantize().values, "values", [](const VqFormat& format) {
    KvDequantize op = sound_dequantize();
    op.values = format;
    return op;
  });
}

TEST(CheckDecode, HeadDim) {
  KvDequantize op = sound_dequantize();
  for (const int head_dim : {64, 80, 96, 112, 128, 160, 192, 256}) {
    op.shape.head_dim = head_dim;
    expect_ok(check(op));
    expect_ok(judge_dequantize_plan({}, op));
  }
  for (const int head_dim : {32, 72, 512}) {
    op.shape.head_dim = head_dim;
    expect_refused(check(op), {"head_dim " + std::to_string(head_dim), "not built yet", "80"});
  }
}

TEST(CheckDecode, Ranges) { check_plan_ranges(sound_dequantize(), find_gpu("h200")); }

// A row of 256 channels takes 32 lanes.
TEST(CheckDecode, WholeWarpsAndSharedMemory) {
  expect_refused(judge_dequantize_plan({.threads = 48}), {"threads 48", "multiple of 32"});
  KvDequantize op = sound_dequantize();
  op.shape.head_dim = 256;
  expect_ok(judge_dequantize_plan({.threads = 32}, op));
  op.keys.num_codebooks = 4;
  op.keys.index_bits = 16;
  expect_ok(judge_dequantize_plan({.tokens_per_block = 4096}, op));
  expect_refused(judge_dequantize_plan({.key_codebook = {.shared = 65536}}, op),
                 {"bytes of shared memory per block"});
  op.shape.tokens = 2147475455;
  expect_refused(judge_dequantize_plan({.tokens_per_block = 1}, op), {"grid's first axis"});
  expect_refused(judge_dequantize_plan({.key_codebook = {.shared = 257}}), {"keys", "257", "256"});
}

TEST(CheckDecode, PlansOfOtherOps) {
  const GpuSpec gpu = find_gpu("h200");
  expect_refused(check(AttentionSimt{}, sound_dequantize(), gpu), {"another op", "kv_dequantize"});
  expect_refused(check(AppendSimt{}, sound_dequantize(), gpu), {"another op", "kv_dequantize"});
  expect_refused(check(DequantizeSimt{}, read_config(append_json(), "c").problem, gpu),
                 {"another op", "kv_append"});
}

TEST(CheckDecode, PlansHaveNames) {
  const Plan plan = DequantizeSimt{.tokens_per_block = 32};
  EXPECT_EQ(plan_name(plan), "dequantize_simt/tokens_per_block=32");
  const Json json = plan_name(plan);
  EXPECT_EQ(read_plan_name(JsonCursor(json, "t.jsonl", "/plan")), plan);
}

}  // namespace
}  // namespace vqgen
