// Invalid values of options, options that exclude each other, and commands that fail before their
// first line.
#include "core/files/files.h"
#include "tests/cli/tiny_bundle.h"

namespace vqgen {
namespace {

const std::string kConfig = example("tinycode-projection");

TEST(Options, CountsAreDigitsWithinBounds) {
  struct Count {
    Arguments command;
    std::string option;
    std::string bounds;
  };
  const std::string seeds = "from 0 to 9007199254740991";
  const std::vector<Count> counts{
      {{"run", kConfig}, "--seed", seeds},
      {{"quantize", "--input", "a", "--out", "b"}, "--seed", seeds},
      {{"measure", kConfig}, "--seed", seeds},
      {{"dev", "ablate", kConfig}, "--seed", seeds},
      {{"tune", kConfig}, "--seed", seeds},
      {{"dev", "space", kConfig}, "--sample", "from 0 to 1000000000"},
      {{"tune", kConfig}, "--max-candidates", "from 0 to 1000000000"},
      {{"tune", kConfig}, "--rounds", "from 1 to 1000"},
      {{"dev", "ablate", kConfig}, "--budget", "from 1 to 100000"},
      {{"count-accesses", "--data", "a", "--out", "b"}, "--parts", "from 1 to 1024"}};
  for (const auto& [command, option, bounds] : counts) {
    for (const char* value : {"-1", "-18446744073709551615", "1.5", "many", "1e99"}) {
      Arguments arguments = command;
      arguments.push_back(option + "=" + value);
      expect_failure(arguments, 2, {option, "'" + std::string(value) + "'", bounds});
    }
  }
  for (const char* value : {"-1", "nan", "inf", "60001"}) {
    expect_failure({"measure", kConfig, std::string("--warm-up=") + value}, 2,
                   {"--warm-up", value, "from 0 to 60000"});
  }
}

// A shell's unset variable gives an empty value.
TEST(Options, AnEmptyValueIsNoDefault) {
  const std::vector<Arguments> commands{{"compile", kConfig, "--gpu", ""},
                                        {"compile", kConfig, "--access-counts", ""},
                                        {"compile", kConfig, "--out", ""},
                                        {"run", kConfig, "--data", ""},
                                        {"measure", kConfig, "--plans", ""},
                                        {"measure", kConfig, "--code-distribution", ""},
                                        {"tune", kConfig, "--shard", ""},
                                        {"tune", kConfig, "--journal", ""},
                                        {"cache", "gc", "--max-bytes", ""},
                                        {"cache", "pack", "p", "--from", ""},
                                        {"db", "query", kConfig, "--code-distribution", ""}};
  for (const Arguments& command : commands) {
    expect_failure(command, 2, {command[command.size() - 2], "must not be empty"});
  }
  expect_failure({"compile", ""}, 2, {"config", "must not be empty"});
}

TEST(Options, ThatDoNotGoTogether) {
  expect_failure({"dev", "space", kConfig, "--sample", "3", "--top", "2"}, 2,
                 {"--top", "--sample"});
  expect_failure({"tune", kConfig, "--replay", "r.json", "--backend", "host"}, 2,
                 {"--replay", "--backend"});
}

TEST(Options, LengthsAreOnePerSequenceAndFitTheCache) {
  const Folder folder;
  const std::string config = folder.file(
      "c.json",
      R"({"op": "attention_decode", "keys": "vecinfer-d4b8i8", "values": "vecinfer-d4b8i8",
          "shape": {"batch": 3, "query_heads": 4, "kv_heads": 1, "head_dim": 64, "tokens": 64}})");
  const auto command = [&](const std::string& path, const std::string& lengths) {
    return Arguments{"measure", path, "--backend", "host", "--gpu", "h200", "--lengths", lengths};
  };
  for (const char* lengths : {"1x64,1x3", "4x2", "1x65,2x1", "x", "3x", "3", "1x2,,2x3", "3x-1"}) {
    expect_failure(command(config, lengths), 2, {"--lengths", lengths, "1x131072,31x2048"});
  }
  expect_failure(command(kConfig, "1x2"), 2, {"--lengths", "attention_decode", kConfig});
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  Arguments timed = command(config, "1x64,1x0,1x7");
  timed.push_back("--json");
  const Outcome outcome = vqgen(timed);
  expect_success(outcome);
  // 64 and 7 of 192 tokens are read, and what they make passes the checks.
  const Json measured = document_of(outcome)["configs"][0];
  EXPECT_EQ(measured["code_bytes"], (64 + 7) * 2 * 16);
  EXPECT_EQ(measured["measurements"][0]["outcome"], "timed");
}

// expect_failure() also requires an empty stdout.
TEST(Options, NothingIsPrintedBeforeAFailure) {
  expect_failure({"dev", "regret", "nope"}, 2, {"nope: cannot read"});
  expect_failure({"cache", "explain", kConfig}, 5, {"NVRTC", "/nowhere"},
                 {{"VQGEN_NVRTC", "/nowhere"}});
  if (has("GPU")) return;
  expect_failure({"dev", "space", kConfig, "--sample", "3"}, 5, {"no CUDA driver"});
}

// A folder that takes no new file lets a command fail at its last step.
TEST_F(TinyBundle, NothingIsPrintedWhereTheResultCannotBeWritten) {
  const auto closed = [&](const std::string& name) {
    std::filesystem::create_directories(folder.path("closed/" + name));
    return folder.path("closed/" + name);
  };
  const std::string bundle = cache_bundle();
  expect_failure({"count-accesses", "--data", bundle, "--out", closed("a")}, 2, {"is a folder"});
  const std::string longest = folder.path(std::string(250, 'n'));  // no room for a sibling's name
  expect_failure({"count-accesses", "--data", bundle, "--out", longest}, 2, {"cannot write"});
  expect_failure({"repack", bundle, "--layout", "4x1", "--out", longest}, 2, {"cannot write"});
  expect_failure({"reorder", "--data", bundle, "--out", longest}, 2, {"cannot write"});
  expect_failure(run_arguments(tiny_gemv(), bundle), 2, {"holds a KV cache"});
}

}  // namespace
}  // namespace vqgen
