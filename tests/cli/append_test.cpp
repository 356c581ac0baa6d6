// kv_append through the tool: run, measured, explained and exported as other ops are, and options
// that it does not take refused.
#include "tests/cli/op_tool.h"

namespace vqgen {
namespace {

class AppendTool : public OpTool {
 protected:
  AppendTool()
      : OpTool({{"op", "kv_append"},
                {"shape",
                 {{"batch", 2},
                  {"kv_heads", 1},
                  {"head_dim", 64},
                  {"tokens", 20},
                  {"new_tokens", 3},
                  {"recent_tokens", 2}}},
                {"keys", "vecinfer-d4b8"},
                {"values", "vecinfer-d4b8"}}) {}
};

TEST_F(AppendTool, IsRunVerifiedAndMeasuredOnTheHost) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  EXPECT_LT(verified()["tolerance"].get<double>(), 1e-5);
  verified(in_shape({{"page_tokens", 16}}));
  verified(in_shape({{"recent_tokens", 12}, {"flush_block", 5}, {"page_tokens", 16}}));
  EXPECT_EQ(measured()["code_bytes"], 2 * 3 * 2 * 16);  // rows of 4 words, of keys and of values
}

TEST_F(AppendTool, IsExplainedAndExported) {
  expect_explained({"kv_append in f16: up to 3 new tokens of each of 2 sequences",
                    "compared with an entry once it is loaded", "not modelled yet"});
  expect_explained({"2 sequences in pages of 16"}, in_shape({{"page_tokens", 16}}));
  expect_explained({"2 sequences, which leave the window 2 at a time"},
                   in_shape({{"flush_block", 2}}));
  expect_exported("kv_append_simt_d4b8_d4b8_f16_");
}

TEST_F(AppendTool, RefusesWhatItHasNoUseFor) {
  expect_failure({"dev", "ablate", config(), "--backend", "host"}, 3, {"ablate", "kv_append"});
  expect_failure({"compile", config({{"plan", {{"combine", "last_block"}}}}), "--gpu", "h200"}, 2,
                 {"/plan", "combine"});
  expect_failure({"compile", config({{"shape", {{"batch", 1}}}}), "--gpu", "h200"}, 2,
                 {"/shape", "is missing"});
  expect_failure({"compile", config({{"plan", {{"tokens_per_block", 4}}}}), "--gpu", "h200"}, 3,
                 {"/plan", "tokens_per_block 4", "3 new tokens"});
  expect_failure({"run", config(in_shape({{"page_tokens", 17}})), "--backend", "host"}, 2,
                 {"/shape/page_tokens: 17 is none of 16, 32, 64, 128 and 256"});
  expect_failure({"run", config(in_shape({{"flush_block", 3}})), "--backend", "host"}, 2,
                 {"/shape/recent_tokens: 2 is too few for /shape/flush_block 3"});
  expect_failure({"run", config(in_shape({{"query_tokens", 2}})), "--backend", "host"}, 2,
                 {"/shape", "unknown field 'query_tokens'"});
}

}  // namespace
}  // namespace vqgen
