// Refusals whose remedy works: each test does what the refusal says, and then nothing is refused.
#include <algorithm>

#include "core/profiles.h"
#include "core/suggest.h"
#include "tests/cli/tiny_bundle.h"

namespace vqgen {
namespace {

class Remedy : public testing::Test {
 protected:
  std::string write(const Json& config) const { return folder.file("c.json", config.dump()); }
  // What `vqgen explain` says against the config; empty if it explains it.
  std::string refusal(const Json& config, const std::string& gpu = "h200") const {
    const Outcome outcome = vqgen({"explain", write(config), "--gpu", gpu});
    EXPECT_EQ(outcome.exit_code == 0, outcome.err.empty()) << outcome.err;
    return outcome.err;
  }
  static Json cache(const Json& keys, const Json& values = "vecinfer-d4b8") {
    Json config = tiny_attention();
    config["shape"]["head_dim"] = 128;
    config["keys"] = keys;
    config["values"] = values;
    return config;
  }
  static Json product(const Json& weights) {
    Json config = tiny_gemv();
    config["weights"] = weights;
    return config;
  }

  Folder folder;
};

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& each : words) {
    EXPECT_NE(text.find(each), std::string::npos) << each << " in: " << text;
  }
}

// With each preset for caches, a head size that no kernel has is named before the format.
TEST_F(Remedy, HeadsOfASizeThatNoKernelHas) {
  for (const std::string& preset : formats_for(FormatUse::values)) {
    if (find_format(preset, "test").is_wide()) continue;  // these formats fix the width of a head
    SCOPED_TRACE(preset);
    const std::vector<std::string> of_keys = formats_for(FormatUse::keys);
    const bool keys = std::find(of_keys.begin(), of_keys.end(), preset) != of_keys.end();
    Json config = cache(keys ? preset : "vecinfer-d4b8i8", preset);
    config["shape"]["recent_tokens"] = 64;
    config["shape"]["head_dim"] = 100;
    expect_words(refusal(config), {"c.json: /shape/head_dim: 100 is not built yet; use 64, 80, 96, "
                                   "112, 128, 160, 192 or 256"});
    if (keys) {  // the remedy of a transform leads to it too
      Json plain = config;
      plain["keys"] = {{"preset", preset}, {"smooth", false}, {"hadamard", false}};
      expect_words(refusal(plain), {"c.json: /shape/head_dim: 100 is not built yet; use 64, 80, "
                                    "96, 112, 128, 160, 192 or 256"});
    }
    config["op"] = "kv_append";
    config["shape"].erase("query_heads");
    config["shape"]["new_tokens"] = 1;
    expect_words(refusal(config),
                 {"head_dim", "100 is not built yet; use 64, 80, 96, 112, 128, 160, 192 or 256"});
  }
}

TEST_F(Remedy, TheGpuIsJudgedBeforeTheFormat) {
  for (const char* dataflow : {"int8_wgmma", "wgmma_large_m", "wgmma"}) {
    Json config = product("aqlm-2x8");
    config["op"] = "gemm";
    config["shape"] = {{"m", 64}, {"out_features", 1024}, {"in_features", 1024}};
    config["plan"]["dataflow"] = dataflow;
    expect_words(refusal(config, "a100"), {"NVIDIA A100", "Hopper alone has", "use dataflow "});
    config["plan"]["dataflow"] = "mma";
    EXPECT_EQ(refusal(config, "a100"), "");
  }
}

// A value that another dataflow takes selects that dataflow; a value that none takes names its
// dataflow.
TEST_F(Remedy, AFieldThatTheUsualDataflowDoesNotTake) {
  Json config = cache("vecinfer-d4b8i8", "vecinfer-d4b8i8");
  config["shape"]["tokens"] = 16384;
  ASSERT_EQ(refusal(config), "");
  config["plan"]["threads"] = 1024;
  EXPECT_EQ(refusal(config).find("whole number from 32 to 512"), std::string::npos);
  config["plan"]["threads"] = 1 << 20;
  expect_words(refusal(config), {"/plan/threads: ", ", in dataflow "});
}

TEST_F(Remedy, NamesOfFormatsAreSuggestedForTheOperand) {
  for (const auto& [given, meant] :
       {std::pair("int4", "int4-kivi-keys"), std::pair("fp8", "fp8-e4m3"),
        std::pair("vecinfer-d4b9", "vecinfer-d4b8"), std::pair("kivi", "int4-kivi-keys")}) {
    const std::string said = refusal(cache(given));
    const std::string suggestion = "; did you mean '" + std::string(meant) + "'?";
    expect_words(said, {"/keys: ", suggestion, "one of "});
    EXPECT_LT(said.find(suggestion), said.find("one of ")) << said;
    EXPECT_EQ(said.find("aqlm"), std::string::npos) << said;
    EXPECT_LE(std::count(said.begin(), said.end(), ','), 9) << said;
  }
  EXPECT_EQ(refusal(product("nf4")).find("vecinfer"), std::string::npos);
  expect_words(refusal(product("nf4")), {"aqlm-2x8i8"});
}

// Only failing pairs are refused so, since some formats work for an operand that they were not made
// for.
TEST_F(Remedy, PresetsOfAnotherOperandAreCalledSo) {
  expect_words(
      refusal(cache("aqlm-2x8")),
      {"/keys: 'aqlm-2x8' is a format of weights; for keys take one of", "vecinfer-d4b8i8"});
  expect_words(refusal(cache("vecinfer-d4b8", "gptvq-2")),
               {"/values: 'gptvq-2' is a format of weights; for values take one of"});
  expect_words(
      refusal(product("int8-channel")),
      {"/weights: 'int8-channel' is a format of KV caches; for weights take one of", "aqlm-2x8i8"});
}

TEST_F(Remedy, TablesOfFormatsThatHaveNone) {
  Json config = cache("int8-channel", "int8-channel");
  config["plan"]["dataflow"] = "lut";
  expect_words(refusal(config), {"codes of int8 are numbers", "use dataflow simt"});
  config["plan"]["dataflow"] = "simt";
  EXPECT_EQ(refusal(config), "");
  Json large = product("aqlm-1x16");
  large["shape"] = {{"m", 1}, {"out_features", 4096}, {"in_features", 4096}};
  large["plan"]["dataflow"] = "lut";
  const std::string said = refusal(large);
  expect_words(said, {"tables of 65536 inner products", "leave it out", "dataflows that can: "});
  large.erase("plan");
  EXPECT_EQ(refusal(large), "");
  std::string offered = said.substr(said.find("can: ") + 5);
  offered.pop_back();
  int followed = 0;
  for (std::size_t at = 0; at < offered.size(); ++followed) {
    const std::size_t end = std::min(offered.find(", ", at), offered.size());
    large["plan"]["dataflow"] = offered.substr(at, end - at);
    EXPECT_EQ(refusal(large), "") << offered;
    at = end + 2;
  }
  EXPECT_GE(followed, 3);
}

// Every op without placement refuses them; an op with placement names the field with the file.
TEST_F(Remedy, AccessCountsWhereNothingIsPlaced) {
  Json append = cache("vecinfer-d4b8");
  append["op"] = "kv_append";
  append["shape"].erase("query_heads");
  append["shape"]["new_tokens"] = 1;
  const Json merge = {{"op", "attention_merge"},
                      {"shape", {{"rows", 2}, {"parts", 2}, {"heads", 4}, {"head_dim", 128}}}};
  const Json scalar = {{"op", "int8_quantize"}, {"shape", {{"tokens", 8}, {"channels", 8}}}};
  for (Json config : {append, merge, scalar, cache("int8-channel")}) {
    SCOPED_TRACE(config.dump());
    ASSERT_EQ(refusal(config), "");
    config["access_counts"] = "none.json";
    expect_words(refusal(config), {"/access_counts: ", "remove access_counts"});
  }
  Json config = cache("vecinfer-d4b8");
  config["access_counts"] = "none.json";
  expect_words(refusal(config), {"c.json: /access_counts: ", "none.json: cannot read"});
}

// By the field or option that names it, whether it is not there or not what it should be.
TEST_F(Remedy, AFileThatIsNamedByAFieldIsCalledByIt) {
  const std::string torn = folder.file("torn.json", "{");
  for (const std::string& file : {std::string("none.json"), torn}) {
    const std::string why = file == torn ? "malformed JSON" : "cannot read: No such file";
    Json config = cache("vecinfer-d4b8");
    for (const char* field : {"keys", "values", "gpu", "access_counts"}) {
      Json wrong = config;
      wrong[field] = file;
      const Outcome outcome = vqgen({"explain", write(wrong)});
      expect_words(outcome.err, {"c.json: /" + std::string(field) + ": ", file + ": " + why});
      if (file != torn) expect_words(outcome.err, {"correct its path"});
    }
    config["keys"] = {{"preset", file}};
    expect_words(refusal(config), {"c.json: /keys/preset: ", file + ": " + why});
    config["keys"] = "vecinfer-d4b8";
    expect_words(vqgen({"explain", write(config), "--access-counts", file}).err,
                 {"vqgen: --access-counts: " + file + ": " + why});
    expect_words(refusal(product(file)), {"c.json: /weights: ", file + ": " + why});
  }
}

TEST_F(Remedy, WhatIsMissingIsNamed) {
  Json config = cache("vecinfer-d4b8");
  config["shape"].erase("tokens");
  expect_words(refusal(config),
               {"/shape: the field 'tokens' is missing: tokens of the longest sequence; give a "
                "number from 1 to 2147482623"});
}

}  // namespace
}  // namespace vqgen
