// kv_append through the tool: run, measured, explained and exported as other ops are, and what it
// has no use for refused.
#include "core/files/files.h"
#include "tests/cli/tool.h"

namespace vqgen {
namespace {

class AppendTool : public testing::Test {
 protected:
  std::string config(const Json& more = Json::object()) const {
    Json json = {{"op", "kv_append"},
                 {"shape",
                  {{"batch", 2},
                   {"kv_heads", 1},
                   {"head_dim", 64},
                   {"tokens", 20},
                   {"new_tokens", 3},
                   {"window", 2}}},
                 {"keys", "vecinfer-d4b8"},
                 {"values", "vecinfer-d4b8"}};
    json.update(more);
    return folder.file("append.json", json.dump());
  }
  Folder folder;
};

TEST_F(AppendTool, IsRunVerifiedAndMeasuredOnTheHost) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  for (const char* check : {"", "races"}) {
    Arguments arguments{"run", config(), "--backend", "host", "--json"};
    if (*check != '\0') arguments.insert(arguments.end(), {"--check", check});
    const Outcome ran = vqgen(arguments);
    expect_success(ran);
    const Json document = document_of(ran);
    EXPECT_EQ(document["ok"], true) << document;
    EXPECT_LE(document["rel_err"].get<double>(), document["tolerance"].get<double>());
    EXPECT_LT(document["tolerance"].get<double>(), 1e-5);
  }
  const Outcome measured =
      vqgen({"measure", config({{"plan", {{"threads", 64}}}}), "--backend", "host", "--json"});
  expect_success(measured);
  const Json each = document_of(measured)["configs"][0];
  EXPECT_EQ(each["measurements"][0]["outcome"], "timed") << each;
  EXPECT_EQ(each["measurements"][0]["plan"]["threads"], 64);
  EXPECT_EQ(each["code_bytes"], 2 * 3 * 2 * 16);  // rows of 4 words, of keys and of values
}

TEST_F(AppendTool, IsExplainedAndExported) {
  const Outcome explained = vqgen({"explain", config(), "--gpu", "h200"});
  expect_success(explained);
  for (const char* words : {"kv_append in f16: up to 3 new tokens of each of 2 sequences",
                            "compared with an entry once it is loaded", "not modelled yet"}) {
    EXPECT_NE(explained.out.find(words), std::string::npos) << words << explained.out;
  }
  const std::string text = folder.path("kernel.cu");
  expect_success(vqgen({"export", config(), "--gpu", "h200", "--out", text}));
  EXPECT_NE(read_text(text).find("VQ_KERNEL(kv_append_lanes_d4b8_d4b8_f16_"), std::string::npos);
}

TEST_F(AppendTool, RefusesWhatItHasNoUseFor) {
  expect_failure({"ablate", config(), "--backend", "host"}, 3, {"ablate", "kv_append"});
  expect_failure({"compile", config({{"plan", {{"combine", "last_block"}}}}), "--gpu", "h200"}, 2,
                 {"/plan", "combine"});
  expect_failure({"compile", config({{"shape", {{"batch", 1}}}}), "--gpu", "h200"}, 2,
                 {"/shape", "is missing"});
  expect_failure({"compile", config({{"plan", {{"tokens_per_block", 4}}}}), "--gpu", "h200"}, 3,
                 {"/plan", "tokens_per_block 4", "3 new tokens"});
}

}  // namespace
}  // namespace vqgen
