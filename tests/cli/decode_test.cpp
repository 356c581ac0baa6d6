// kv_dequantize through the tool: run on drawn data, measured, explained and exported as other ops
// are, and options that it does not take refused.
#include "tests/cli/op_tool.h"

namespace vqgen {
namespace {

class DequantizeTool : public OpTool {
 protected:
  DequantizeTool()
      : OpTool({{"op", "kv_dequantize"},
                {"shape",
                 {{"batch", 2},
                  {"kv_heads", 1},
                  {"head_dim", 64},
                  {"tokens", 20},
                  {"recent_tokens", 2}}},
                {"keys", "vecinfer-d4b8"},
                {"values", "vecinfer-d4b8"}}) {}
};

TEST_F(DequantizeTool, IsRunVerifiedAndMeasuredOnTheHost) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  verified();
  verified(in_shape({{"page_tokens", 16}}));
  EXPECT_EQ(measured()["code_bytes"], 2 * 20 * 2 * 16);  // rows of 4 words, of keys and of values
}

TEST_F(DequantizeTool, IsExplainedAndExported) {
  expect_explained({"kv_dequantize in f16: up to 20 tokens of each of 2 sequences",
                    "10.2 kB of dense rows written", "in a step"});
  expect_explained({"2 sequences in pages of 64"}, in_shape({{"page_tokens", 64}}));
  expect_exported("kv_dequantize_simt_d4b8_d4b8_f16_");
}

TEST_F(DequantizeTool, RefusesWhatItHasNoUseFor) {
  expect_failure({"dev", "ablate", config(), "--backend", "host"}, 3, {"ablate", "kv_dequantize"});
  expect_failure({"compile", config({{"plan", {{"splits", 2}}}}), "--gpu", "h200"}, 2,
                 {"/plan", "splits"});
  expect_failure({"compile", config({{"plan", {{"threads", 40}}}}), "--gpu", "h200"}, 3,
                 {"/plan", "threads 40"});
  expect_failure({"run", config(in_shape({{"page_tokens", 257}})), "--backend", "host"}, 2,
                 {"/shape/page_tokens", "from 0 to 256"});
}

}  // namespace
}  // namespace vqgen
