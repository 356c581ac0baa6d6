// attention_merge through the tool: run on drawn data, measured, explained, exported and tuned as
// other ops are, and what it has no use for refused.
#include "core/files/files.h"
#include "tests/cli/tool.h"

namespace vqgen {
namespace {

class MergeTool : public testing::Test {
 protected:
  std::string config(const Json& more = Json::object()) const {
    Json json = {{"op", "attention_merge"},
                 {"shape", {{"rows", 20}, {"heads", 3}, {"head_dim", 64}, {"parts", 3}}}};
    json.update(more);
    return folder.file("merge.json", json.dump());
  }
  Folder folder;
};

TEST_F(MergeTool, IsRunVerifiedAndMeasuredOnTheHost) {
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
  EXPECT_EQ(each["code_bytes"], 3 * 20 * 3 * (64 * 2 + 4));  // of three parts
  EXPECT_EQ(each["codebook_bytes"], 0);
}

TEST_F(MergeTool, IsExplainedAndExported) {
  const Outcome explained = vqgen({"explain", config(), "--gpu", "h200"});
  expect_success(explained);
  for (const char* words : {"attention_merge in f16: 3 results of up to 20 query tokens",
                            "31.7 kB of results read and written", "8 lanes each"}) {
    EXPECT_NE(explained.out.find(words), std::string::npos) << words << explained.out;
  }
  const std::string text = folder.path("kernel.cu");
  expect_success(vqgen({"export", config(), "--gpu", "h200", "--out", text}));
  EXPECT_NE(read_text(text).find("VQ_KERNEL(attention_merge_lanes_f16_"), std::string::npos);
}

TEST_F(MergeTool, RefusesWhatItHasNoUseFor) {
  expect_failure({"ablate", config(), "--backend", "host"}, 3, {"ablate", "attention_merge"});
  expect_failure({"compile", config({{"plan", {{"splits", 2}}}}), "--gpu", "h200"}, 2,
                 {"/plan", "splits"});
  expect_failure({"compile", config({{"plan", {{"threads", 40}}}}), "--gpu", "h200"}, 3,
                 {"/plan", "threads 40"});
  expect_failure({"compile", config({{"keys", "cq-2c8b"}}), "--gpu", "h200"}, 2, {"keys"});
}

}  // namespace
}  // namespace vqgen
