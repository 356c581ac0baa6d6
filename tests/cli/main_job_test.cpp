// The job that vqgen is for, on real data: quantize, generate, run, verify.
#include <algorithm>

#include "runtime/verify/random.h"
#include "tests/cli/tiny_bundle.h"
#include "tests/write_safetensors.h"

namespace vqgen {
namespace {

class MainJob : public testing::Test {
 protected:
  void SetUp() override {
    if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  }

  static Json quantize(const Arguments& more) {
    Arguments arguments{"quantize", "--keep-original", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = vqgen(arguments);
    expect_success(outcome);
    return document_of(outcome);
  }

  static Json run(const Arguments& more) {
    Arguments arguments{"run", "--backend", "host", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = vqgen(arguments);
    expect_success(outcome);
    EXPECT_EQ(outcome.err, "");
    const Json document = document_of(outcome);
    EXPECT_EQ(document.value("ok", false), true) << document;
    EXPECT_LT(document.value("rel_err", 1.0), 1e-3);
    EXPECT_LE(document.value("rel_err", 1.0), document.value("tolerance", 0.0));
    return document;
  }

  // The example config with additional fields in its shape.
  std::string config_with(const std::string& name, const Json& shape) const {
    Json json = parse_json_file(example(name));
    json["shape"].update(shape);
    return folder.file("config.json", json.dump());
  }

  Folder folder;
};

TEST_F(MainJob, AttentionOverARealCache) {
  const std::string bundle = folder.path("cache");
  const Json made = quantize({"--input", sample("tinycode-kv-heldout"), "--calibration",
                              sample("tinycode-kv-calibration"), "--out", bundle, "--keys",
                              "layer2.k", "--key-format", "vecinfer-d4b8", "--values", "layer2.v",
                              "--value-format", "vecinfer-d4b8", "--queries", "layer2.q"});
  ASSERT_EQ(made["tensors"].size(), 2u);
  for (const Json& tensor : made["tensors"]) {
    EXPECT_EQ(tensor["format"], "d4b8");
    EXPECT_EQ(tensor["bits_per_element"], 2.0);
    EXPECT_GT(tensor["rel_err_calibration"].get<double>(), 0.01);
    EXPECT_LT(tensor["rel_err_calibration"].get<double>(), 0.6);
    EXPECT_LT(tensor["rel_err_input"].get<double>(), 0.6);
  }
  const double plain =
      run({example("tinycode-layer"), "--data", bundle}).value("rel_err_unquantized", -1.0);
  EXPECT_GT(plain, 0.01);
  EXPECT_LT(plain, 0.5);

  // With the newest and the first tokens raw, the result is closer to the tensors before
  // quantization.
  const double windowed =
      run({config_with("tinycode-layer", {{"recent_tokens", 128}, {"sinks", 4}}), "--data", bundle})
          .value("rel_err_unquantized", -1.0);
  EXPECT_GT(windowed, 0.0);
  EXPECT_LT(windowed, plain);
}

TEST_F(MainJob, GemvWithARealWeight) {
  const std::string bundle = folder.path("weight");
  const Json made = quantize({"--input", sample("tinycode-weight"), "--out", bundle, "--weights",
                              "blocks.2.down.weight", "--format", "aqlm-2x8", "--inputs", "x"});
  ASSERT_EQ(made["tensors"].size(), 1u);
  EXPECT_EQ(made["tensors"][0]["format"], "d8b8x2");
  EXPECT_EQ(made["tensors"][0]["bits_per_element"], 2.0);
  const Json report = run({example("tinycode-projection"), "--data", bundle});
  EXPECT_GT(report.value("rel_err_unquantized", 0.0), 0.01);
  EXPECT_LT(report.value("rel_err_unquantized", 1.0), 0.6);
  run({config_with("tinycode-projection", {{"m", 1}}), "--data", bundle});
}

TEST(HostRun, SmallExamplesOnGeneratedData) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  for (const char* name : {"tinycode-layer", "tinycode-projection"}) {
    for (const char* seed : {"1", "2"}) {
      const Outcome outcome =
          vqgen({"run", example(name), "--backend", "host", "--seed", seed, "--json"});
      expect_success(outcome);
      const Json document = document_of(outcome);
      EXPECT_EQ(document.value("ok", false), true) << document;
      EXPECT_LT(document.value("rel_err", 1.0), 1e-3);
      EXPECT_EQ(document["seed"], std::stoi(seed));
      EXPECT_FALSE(document.contains("rel_err_unquantized"));
      EXPECT_EQ(document["backend_reason"], "named by --backend");
    }
  }
}

// A compiler that gets the kernel wrong: every result is doubled.
TEST(HostRun, AWrongResultExitsWith4) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  const Folder folder;
  const std::string compiler =
      folder.file("wrong-g++",
                  "#!/bin/sh\n"
                  "[ \"$1\" = --version ] || sed -i "
                  "'s/(scaled(sum, scale))/(2 * scaled(sum, scale))/' kernel.cpp\n"
                  "exec g++ \"$@\"\n");
  std::filesystem::permissions(compiler, std::filesystem::perms(0755));
  Json gemv = tiny_gemv();
  gemv["plan"] = {{"dataflow", "mma"}};  // which has that line
  const std::string config = folder.file("config.json", gemv.dump());
  const Variables variables{{"VQGEN_CXX", compiler}, {"VQGEN_CACHE_DIR", folder.path("cache")}};
  const Outcome outcome = vqgen({"run", config, "--backend", "host", "--json"}, variables);
  EXPECT_EQ(outcome.exit_code, 4) << outcome.err;
  EXPECT_NE(outcome.err.find("vqgen: verification failed"), std::string::npos) << outcome.err;
  const Json document = document_of(outcome);
  EXPECT_EQ(document["ok"], false);
  EXPECT_NEAR(document.value("rel_err", 0.0), 1.0, 0.01);
  EXPECT_NE(document.value("why", "").find("is off by"), std::string::npos) << document;
}

TEST(HostRun, RacesAreCheckedOnRequest) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  for (const char* name : {"tinycode-layer", "tinycode-projection"}) {
    const Outcome outcome = vqgen({"run", example(name), "--check", "races"});
    expect_success(outcome);
    EXPECT_NE(outcome.out.find("no races between threads"), std::string::npos) << outcome.out;
  }
}

// A cache of [2, 256, 64] with 4 queries of 4 heads, whose keys have `magnitude` and are changed.
template <class Change>
std::string write_cache(const Folder& folder, double magnitude, Change change) {
  Random random(7);
  const auto normal = [&](std::size_t count, double times) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random.normal() * times);
    return values;
  };
  std::vector<float> all_keys = normal(std::size_t{2} * 256 * 64, magnitude);
  for (std::size_t i = 0; i < all_keys.size(); ++i) all_keys[i] = change(i % 64, all_keys[i]);
  const std::vector<float> values = normal(all_keys.size(), 1);
  const std::vector<float> queries = normal(std::size_t{4} * 4 * 64, 50);
  const std::string path = folder.path("cache.safetensors");
  write_safetensors(path,
                    {tensor_view("l.k", TensorType::f32, {2, 256, 64}, all_keys),
                     tensor_view("l.v", TensorType::f32, {2, 256, 64}, values),
                     tensor_view("l.q", TensorType::f32, {4, 4, 64}, queries)},
                    {});
  return path;
}

Arguments of_cache(const std::string& input, const std::string& out, const std::string& format) {
  return {"--input",        input,       "--out",     out,   "--keys",       "*.k",
          "--values",       "*.v",       "--queries", "*.q", "--key-format", format,
          "--value-format", "int8-token"};
}

// The other channels lose nothing: the kernel is as near its reference as without the channel.
TEST_F(MainJob, ADeadBiasedOrOutlyingKeyChannelLeavesTheOthersAlone) {
  for (const int which : {0, 1, 2}) {
    const std::string bundle = folder.path("bundle" + std::to_string(which));
    quantize(of_cache(write_cache(folder, 0.02,
                                  [which](std::size_t channel, float key) {
                                    if (channel != 5) return key;
                                    return which == 0 ? 0.0f : which == 1 ? key + 6 : key * 300;
                                  }),
                      bundle, "int8-channel"));
    const Json config{
        {"op", "attention_decode"},
        {"shape",
         {{"batch", 4}, {"query_heads", 4}, {"kv_heads", 2}, {"head_dim", 64}, {"tokens", 256}}},
        {"keys", "int8-channel"},
        {"values", "int8-token"}};
    const Json document =
        run({folder.file("uneven.json", config.dump()), "--gpu", "h200", "--data", bundle});
    EXPECT_LT(document["rel_err"].get<double>(), 5e-4) << which;
  }
}

// A bias that all tokens have lowers the error of the keys but not that of the softmax.
TEST_F(MainJob, KeysThatAreMostlyCommonToAllTokensAreWarnedOf) {
  for (const float bias : {0.0f, 60.0f}) {
    Arguments arguments = of_cache(write_cache(folder, 1,
                                               [bias](std::size_t channel, float key) {
                                                 return channel == 3 ? key + bias : key;
                                               }),
                                   folder.path("biased"), "fp8-e4m3");
    arguments.insert(arguments.begin(), "quantize");
    const Outcome outcome = vqgen(arguments);
    expect_success(outcome);
    const std::vector<std::string> lines = lines_of(outcome.err);
    const auto warnings = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
      return line.find("warning: l.keys: ") != std::string::npos &&
             line.find("common to all tokens") != std::string::npos &&
             line.find("int4-kivi-keys") != std::string::npos &&
             line.find("center or klt") != std::string::npos;
    });
    EXPECT_EQ(warnings, bias > 0 ? 1 : 0) << outcome.err;
    EXPECT_NE(outcome.out.find("; centered 0."), std::string::npos) << outcome.out;
  }
}

// A compiler drops the barrier between the chunks of a gemv: the result may be right, so the report
// must come from the race checker and not from the numbers.
TEST(HostRun, ADroppedBarrierIsARaceAndExitsWith5) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  const Folder folder;
  const std::string compiler = folder.file("no-barrier-g++",
                                           "#!/bin/sh\n"
                                           "[ \"$1\" = --version ] || sed -i "
                                           "'s/^      sync_block();$//' "
                                           "kernel.cpp\n"
                                           "exec g++ \"$@\"\n");
  std::filesystem::permissions(compiler, std::filesystem::perms(0755));
  const Variables variables{{"VQGEN_CXX", compiler}, {"VQGEN_CACHE_DIR", folder.path("cache")}};
  expect_failure({"run", example("tinycode-projection"), "--check", "races"}, 5,
                 {"kernel gemv", "race at offset", "_x.cuh:", "put a sync_block between them"},
                 variables);
}

TEST(HostRun, PeopleAreToldTheSame) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  const Outcome outcome = vqgen({"run", example("tinycode-projection"), "--backend", "host"});
  expect_success(outcome);
  for (const char* words : {"backend host: named by --backend", "planned for ", "generated  ok"}) {
    EXPECT_NE(outcome.out.find(words), std::string::npos) << outcome.out;
  }
}

}  // namespace
}  // namespace vqgen
