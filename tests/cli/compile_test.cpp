// compile and export: what they report and write, the kernel cache, and plain nvcc on the text.

#include "core/files/files.h"
#include "tests/cli/tiny_bundle.h"
#include "tests/thirds.h"

namespace vqgen {
namespace {

const std::vector<std::string> kExamples{
    "llama3-8b-attention-2bit", "llama3-8b-up-aqlm-2x8",    "mixed-d4b10-d8b12",
    "tinycode-layer",           "tinycode-layer-d2b8",      "tinycode-layer-d8b12",
    "tinycode-projection",      "llama3-8b-kv-append-2bit", "llama3-8b-kv-decode-2bit",
    "llama3-8b-merge",          "int8-channel-quantize",    "llama3-8b-up-dequantize"};

class Compile : public testing::Test {
 protected:
  void SetUp() override {
    if (!has("NVRTC")) GTEST_SKIP() << "this machine has no NVRTC";
  }
  // The document of `compile CONFIG --json`, with the cache in this test's own folder.
  Json compile(const std::string& config, const Arguments& more = {}) const {
    Arguments arguments{"compile", config, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = vqgen(arguments, {{"VQGEN_CACHE_DIR", folder.path("cache")}});
    expect_success(outcome);
    EXPECT_EQ(outcome.err, "");
    return document_of(outcome);
  }
  static std::string cache_of(const Json& document) {
    return document["kernels"][0].value("cache", "");
  }

  Folder folder;
};

TEST_F(Compile, EveryExampleIsDescribedAndThenCached) {
  for (const std::string& name : test::a_third(kExamples)) {
    SCOPED_TRACE(name);
    const Json first = compile(example(name), {"--gpu", "h200"});
    ASSERT_GE(first["kernels"].size(), 1u);
    EXPECT_EQ(first["gpu"], "NVIDIA H200");
    EXPECT_EQ(first["gpu_reason"], "named by --gpu");
    for (const Json& kernel : first["kernels"]) {
      EXPECT_TRUE(kernel["name"].is_string());
      EXPECT_EQ(kernel["op"], parse_json_file(example(name))["op"]);
      EXPECT_EQ(kernel["arch"], "sm_90a");
      EXPECT_GT(kernel["registers"].get<int>(), 15);
      EXPECT_LE(kernel["registers"].get<int>(), 255);
      EXPECT_GE(kernel["shared_bytes"].get<int>(), 0);
      EXPECT_GE(kernel["spill_bytes"].get<int>(), 0);
      EXPECT_GT(kernel["cubin_bytes"].get<int>(), 1000);
      EXPECT_GT(kernel["compile_ms"].get<double>(), 0);
      EXPECT_EQ(kernel["cache"], "miss");
      EXPECT_EQ(kernel["cache_miss"], "no entry");
      EXPECT_TRUE(kernel["plan"]["threads"].is_number_integer());
    }
    Json second = compile(example(name), {"--gpu", "h200"});
    for (Json& kernel : second["kernels"]) {
      EXPECT_EQ(kernel["cache"], "hit");
      EXPECT_EQ(kernel["cache_layer"], folder.path("cache"));
      kernel["cache"] = "miss";
      kernel["cache_miss"] = "no entry";
      kernel.erase("cache_layer");
    }
    EXPECT_EQ(second, first);
  }
}

TEST_F(Compile, ADamagedCacheFileIsCompiledAnew) {
  const std::string config = folder.file("config.json", tiny_gemv().dump());
  EXPECT_EQ(cache_of(compile(config)), "miss");
  EXPECT_EQ(cache_of(compile(config)), "hit");
  std::string kernel;
  for (const std::string& name : folder.names()) {
    if (name.ends_with(".vqk")) kernel = folder.path(name);
  }
  ASSERT_FALSE(kernel.empty());
  std::string text = read_text(kernel);
  text[text.size() / 2] ^= 1;
  publish_text(kernel, text);
  EXPECT_EQ(cache_of(compile(config)), "miss");
  EXPECT_EQ(cache_of(compile(config)), "hit");
  publish_text(kernel, "");
  EXPECT_EQ(cache_of(compile(config)), "miss");
}

TEST_F(Compile, AnotherPlanOrGpuIsAnotherKernel) {
  Json json = tiny_gemv();
  const Json first = compile(folder.file("config.json", json.dump()), {"--gpu", "h200"});
  EXPECT_EQ(cache_of(compile(folder.path("config.json"), {"--gpu", "a100"})), "miss");
  json["plan"] = {{"threads", 64}};
  const Json fixed = compile(folder.file("config.json", json.dump()), {"--gpu", "h200"});
  EXPECT_EQ(cache_of(fixed), "miss");
  EXPECT_EQ(fixed["kernels"][0]["plan"]["threads"], 64);
  EXPECT_NE(fixed["kernels"][0]["name"], first["kernels"][0]["name"]);
}

TEST_F(Compile, TheConfigsGpuIsTakenAndTheFlagGoesFirst) {
  Json json = tiny_gemv();
  json["gpu"] = "t4";
  const std::string config = folder.file("config.json", json.dump());
  const Json named = compile(config);
  EXPECT_EQ(named["kernels"][0]["arch"], "sm_75");
  EXPECT_EQ(named["gpu_reason"], "named by the config");
  EXPECT_EQ(compile(config, {"--gpu", "a100"})["kernels"][0]["arch"], "sm_80");
}

TEST_F(Compile, WritesCubinTextAndDescription) {
  const std::string config = folder.file("config.json", tiny_gemv().dump());
  const Json document = compile(config, {"--out", folder.path("new/folder")});
  const std::string stem = "new/folder/" + document["kernels"][0].value("name", "");
  std::vector<std::string> written;
  for (const std::string& name : folder.names()) {
    if (name.starts_with("new/")) written.push_back(name);
  }
  EXPECT_EQ(written, (std::vector<std::string>{stem + ".cu", stem + ".cubin", stem + ".json"}));
  EXPECT_TRUE(read_text(folder.path(stem + ".cubin"))
                  .starts_with("\x7f"
                               "ELF"));
  EXPECT_EQ(read_text(folder.path(stem + ".cubin")).size(), document["kernels"][0]["cubin_bytes"]);
  EXPECT_EQ(parse_json_file(folder.path(stem + ".json")), document);
}

TEST_F(Compile, WritesNothingWhereOneOfTheFilesCannotBe) {
  const std::string config = folder.file("config.json", tiny_gemv().dump());
  const std::string stem = compile(config, {"--gpu", "h200"})["kernels"][0].value("name", "");
  std::filesystem::create_directories(folder.path("out/" + stem + ".json"));
  const Outcome outcome = vqgen({"compile", config, "--gpu", "h200", "--out", folder.path("out")},
                                {{"VQGEN_CACHE_DIR", folder.path("cache")}});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find(stem + ".json: cannot write"), std::string::npos) << outcome.err;
  for (const std::string& name : folder.names())
    EXPECT_FALSE(name.starts_with("out/" + stem + ".c"));
}

TEST(Export, WritesTextThatPlainNvccCompiles) {
  const Folder folder;
  bool nvcc = true;
  try {
    nvcc = run_program("nvcc", {"--version"}).exit_code == 0;
  } catch (const std::runtime_error&) {
    nvcc = false;
  }
  // New rows in a basis of their own: three kernels, of which two change the basis.
  const std::string drafts = folder.file("drafts.json", R"({
    "op": "attention_decode", "dtype": "f16", "keys": "klt-2bit-keys", "values": "klt-2bit-values",
    "shape": {"batch": 2, "query_heads": 8, "kv_heads": 2, "head_dim": 128, "tokens": 4096,
              "query_tokens": 4}})");
  for (const std::string& config :
       {example("mixed-d4b10-d8b12"), example("tinycode-projection"), drafts}) {
    const std::string text = folder.path("text.cu");
    const Outcome outcome = vqgen({"export", config, "--gpu", "h200", "--out", text, "--json"});
    expect_success(outcome);
    const Json document = document_of(outcome);
    EXPECT_EQ(document["arch"], "sm_90a");
    EXPECT_EQ(document["out"], text);
    EXPECT_EQ(document["bytes"], read_text(text).size());
    for (const std::string kernel : document["kernels"]) {
      const bool merges = kernel.find("combine") != std::string::npos;
      const std::string written = read_text(text);
      const auto has = [&](const std::string& head) {
        return written.find(head + "(" + kernel + ",") != std::string::npos;
      };
      EXPECT_TRUE(merges ? has("VQ_KERNEL") || has("VQ_KERNEL_AHEAD_RESIDENT")
                         : has("VQ_KERNEL_AHEAD") || has("VQ_KERNEL_AHEAD_CLUSTERS"))
          << kernel;
    }
    if (!nvcc) continue;
    const Outcome compiled =
        run_program("nvcc", {"-std=c++17", "-arch=sm_90a", "-cubin", "-o", text + "bin", text});
    expect_success(compiled);
    EXPECT_TRUE(read_text(text + "bin")
                    .starts_with("\x7f"
                                 "ELF"));
  }
  if (!nvcc) GTEST_SKIP() << "nvcc is not on PATH; the text was written but not compiled";
}

}  // namespace
}  // namespace vqgen
