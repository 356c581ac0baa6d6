// The job that vqgen is for, on real data: quantize, generate, run, verify.
#include "tests/cli/tiny_bundle.h"

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

  // The example config with more fields in its shape.
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

  // The newest and the first tokens raw: closer to the tensors before quantization.
  const double windowed =
      run({config_with("tinycode-layer", {{"window", 128}, {"sinks", 4}}), "--data", bundle})
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
  run({config_with("tinycode-projection", {{"rows", 1}}), "--data", bundle});
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
  gemv["plan"] = {{"dataflow", "fragments"}};  // which has that line
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

// A compiler that drops the barrier between the chunks of a gemv: the result may well be right, the
// report is not of numbers.
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
