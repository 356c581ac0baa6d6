// attention_merge through the tool: run on drawn data, measured, explained and exported as other
// ops are, and options that it does not take refused.
#include "tests/cli/op_tool.h"

namespace vqgen {
namespace {

class MergeTool : public OpTool {
 protected:
  MergeTool()
      : OpTool({{"op", "attention_merge"},
                {"shape", {{"rows", 20}, {"heads", 3}, {"head_dim", 64}, {"parts", 3}}}}) {}
};

TEST_F(MergeTool, IsRunVerifiedAndMeasuredOnTheHost) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  verified();
  const Json each = measured();
  EXPECT_EQ(each["code_bytes"], 3 * 20 * 3 * (64 * 2 + 4));  // of three parts
  EXPECT_EQ(each["codebook_bytes"], 0);
}

TEST_F(MergeTool, IsExplainedAndExported) {
  expect_explained({"attention_merge in f16: 3 results of up to 20 query tokens",
                    "31.7 kB of results read and written", "8 lanes each"});
  expect_exported("attention_merge_simt_f16_");
}

TEST_F(MergeTool, RefusesWhatItHasNoUseFor) {
  expect_failure({"dev", "ablate", config(), "--backend", "host"}, 3,
                 {"ablate", "attention_merge"});
  expect_failure({"compile", config({{"plan", {{"splits", 2}}}}), "--gpu", "h200"}, 2,
                 {"/plan", "splits"});
  expect_failure({"compile", config({{"plan", {{"threads", 40}}}}), "--gpu", "h200"}, 3,
                 {"/plan", "threads 40"});
  expect_failure({"compile", config({{"keys", "cq-2c8b"}}), "--gpu", "h200"}, 2, {"keys"});
  expect_failure({"compile", config(in_shape({{"page_tokens", 16}})), "--gpu", "h200"}, 2,
                 {"/shape", "unknown field 'page_tokens'"});
  for (const int parts : {1, 9}) {
    expect_failure({"compile", config(in_shape({{"parts", parts}})), "--gpu", "h200"}, 2,
                   {"/shape/parts", "from 2 to 8"});
  }
}

}  // namespace
}  // namespace vqgen
