// weight_dequantize through the tool: run on drawn data, measured, explained and exported as other
// ops are, and options that it does not take refused.
#include "tests/cli/op_tool.h"

namespace vqgen {
namespace {

class WeightRowsTool : public OpTool {
 protected:
  WeightRowsTool()
      : OpTool({{"op", "weight_dequantize"},
                {"shape", {{"rows", 20}, {"out_features", 50}, {"in_features", 64}}},
                {"weights", "aqlm-2x8i8"}}) {}
};

TEST_F(WeightRowsTool, IsRunVerifiedAndMeasuredOnTheHost) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  verified();
  verified({{"dtype", "bf16"}});
  EXPECT_EQ(measured()["code_bytes"], 20 * 16);  // rows of 4 words
}

TEST_F(WeightRowsTool, IsExplainedAndExported) {
  expect_explained({"weight_dequantize in f16: up to 20 rows of a matrix of 50 outputs",
                    "2560 bytes of dense rows written", "weight_rows"});
  expect_exported("weight_dequantize_simt_d8b8i8cx2_f16_");
}

TEST_F(WeightRowsTool, RefusesWhatItHasNoUseFor) {
  expect_failure({"dev", "ablate", config(), "--backend", "host"}, 3,
                 {"ablate", "weight_dequantize"});
  expect_failure({"compile", config({{"plan", {{"splits", 2}}}}), "--gpu", "h200"}, 2,
                 {"/plan", "splits"});
  expect_failure({"compile", config({{"plan", {{"threads", 40}}}}), "--gpu", "h200"}, 3,
                 {"/plan", "threads 40"});
  expect_failure({"run", config(in_shape({{"rows", 51}})), "--backend", "host"}, 2,
                 {"/shape/rows", "50"});
}

}  // namespace
}  // namespace vqgen
