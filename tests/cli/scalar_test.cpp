// int8_quantize and int8_dequantize through the tool: run on drawn data, measured, explained and
// exported as other ops are, with the study's measures; options that they do not take are refused.
#include "tests/cli/op_tool.h"

namespace vqgen {
namespace {

class ScalarTool : public OpTool {
 protected:
  ScalarTool()
      : OpTool({{"op", "int8_quantize"},
                {"dtype", "f32"},
                {"shape", {{"tokens", 200}, {"channels", 72}, {"scales", "computed"}}}}) {}
  Json dequantize() const {
    return {{"op", "int8_dequantize"}, {"shape", {{"tokens", 200}, {"channels", 72}}}};
  }
};

TEST_F(ScalarTool, AreRunVerifiedAndMeasuredOnTheHost) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  const Json there = verified();
  const Json back = verified(dequantize());
  for (const Json& each : {there, back}) {
    EXPECT_EQ(each["rel_err"], 0);
    EXPECT_LE(each["largest_error"].get<double>(), 0.00394);
    EXPECT_GT(each["largest_error"].get<double>(), 0.0035);
    EXPECT_GT(each["l2_error"].get<double>(), 0);
    EXPECT_LT(each["mean_score_error"].get<double>(), 0.1);
    EXPECT_EQ(each["clamped"], 0);
  }
  EXPECT_EQ(there["l2_error"], back["l2_error"]);
  EXPECT_EQ(measured()["code_bytes"], 200 * 72 * 4);  // that are read
  const Outcome told = vqgen({"run", config(), "--backend", "host"});
  expect_success(told);
  EXPECT_NE(told.out.find("mean attention-score error 0.0"), std::string::npos) << told.out;
}

TEST_F(ScalarTool, AreExplainedAndExported) {
  expect_explained({"int8_quantize in f32: up to 200 tokens of 72 channels, scales computed",
                    "reads the matrix once more", "form vectorized"});
  expect_explained({"int8_dequantize in f32", "scales given"}, dequantize());
  expect_exported("int8_quantize_forms_f32_");
}

TEST_F(ScalarTool, FormsOfTheStudyAreSampledIfAskedFor) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  const std::string naive = config({{"plan", {{"form", "naive"}}}});
  std::vector<std::string> arguments{"dev",   "space", naive,      "--backend", "host",
                                     "--gpu", "h200",  "--sample", "1",         "--json"};
  const auto measured_plans = [&] {
    const Outcome outcome = vqgen(arguments);
    expect_success(outcome);
    return document_of(outcome)["configs"][0]["measurements"].size();
  };
  EXPECT_EQ(measured_plans(), 1u);  // the chosen one
  arguments.emplace_back("--papers");
  EXPECT_GE(measured_plans(), 2u);
}

TEST_F(ScalarTool, RefuseWhatTheyHaveNoUseFor) {
  expect_failure({"dev", "ablate", config(), "--backend", "host"}, 3, {"ablate", "int8_quantize"});
  expect_failure({"compile", config({{"plan", {{"form", "fast"}}}}), "--gpu", "h200"}, 2,
                 {"/plan/form", "naive, tiled, coarsened, vectorized"});
  expect_failure(
      {"compile", config({{"plan", {{"form", "naive"}, {"vector", 4}}}}), "--gpu", "h200"}, 3,
      {"/plan", "form naive and vector 4"});
  expect_failure({"compile", config(in_shape({{"recent_tokens", 16}})), "--gpu", "h200"}, 2,
                 {"/shape", "unknown field 'recent_tokens'"});
  expect_failure({"compile", config({{"op", "int8_dequantize"}}), "--gpu", "h200"}, 2,
                 {"/shape/scales", "use given"});
  // The matrix exceeds the machine's memory.
  expect_failure({"run", config(in_shape({{"tokens", 2147483647}, {"channels", 2048}})),
                  "--backend", "host", "--gpu", "h200"},
                 5, {"2147483647 tokens and 2048 channels", "memory", "lower tokens or channels"});
}

}  // namespace
}  // namespace vqgen
