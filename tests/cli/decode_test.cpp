// kv_decode through the tool: run on drawn data and on a bundle, measured, explained and exported
// as other ops are, and what it has no use for refused.
#include "core/files/files.h"
#include "tests/cli/tool.h"

namespace vqgen {
namespace {

class DecodeTool : public testing::Test {
 protected:
  std::string config(const Json& more = Json::object()) const {
    Json json = {
        {"op", "kv_decode"},
        {"shape", {{"batch", 2}, {"kv_heads", 1}, {"head_dim", 64}, {"tokens", 20}, {"window", 2}}},
        {"keys", "vecinfer-d4b8"},
        {"values", "vecinfer-d4b8"}};
    json.update(more);
    return folder.file("decode.json", json.dump());
  }
  Folder folder;
};

TEST_F(DecodeTool, IsRunVerifiedAndMeasuredOnTheHost) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  for (const char* check : {"", "races"}) {
    Arguments arguments{"run", config(), "--backend", "host", "--json"};
    if (*check != '\0') arguments.insert(arguments.end(), {"--check", check});
    const Outcome ran = vqgen(arguments);
    expect_success(ran);
    const Json document = document_of(ran);
    EXPECT_EQ(document["ok"], true) << document;
    EXPECT_LE(document["rel_err"].get<double>(), document["tolerance"].get<double>());
  }
  const Outcome measured =
      vqgen({"measure", config({{"plan", {{"threads", 64}}}}), "--backend", "host", "--json"});
  expect_success(measured);
  const Json each = document_of(measured)["configs"][0];
  EXPECT_EQ(each["measurements"][0]["outcome"], "timed") << each;
  EXPECT_EQ(each["measurements"][0]["plan"]["threads"], 64);
  EXPECT_EQ(each["code_bytes"], 2 * 20 * 2 * 16);  // rows of 4 words, of keys and of values
}

TEST_F(DecodeTool, IsExplainedAndExported) {
  const Outcome explained = vqgen({"explain", config(), "--gpu", "h200"});
  expect_success(explained);
  for (const char* words : {"kv_decode in f16: up to 20 tokens of each of 2 sequences",
                            "10.2 kB of dense rows written", "in a step"}) {
    EXPECT_NE(explained.out.find(words), std::string::npos) << words << explained.out;
  }
  const std::string text = folder.path("kernel.cu");
  expect_success(vqgen({"export", config(), "--gpu", "h200", "--out", text}));
  EXPECT_NE(read_text(text).find("VQ_KERNEL(kv_decode_lanes_d4b8_d4b8_f16_"), std::string::npos);
}

TEST_F(DecodeTool, RefusesWhatItHasNoUseFor) {
  expect_failure({"ablate", config(), "--backend", "host"}, 3, {"ablate", "kv_decode"});
  expect_failure({"compile", config({{"plan", {{"splits", 2}}}}), "--gpu", "h200"}, 2,
                 {"/plan", "splits"});
  expect_failure({"compile", config({{"plan", {{"threads", 40}}}}), "--gpu", "h200"}, 3,
                 {"/plan", "threads 40"});
}

}  // namespace
}  // namespace vqgen
